"""What lossy KV does to a model's answers: exact KV beside KV that crossed as a transfer's chunks do, by the engine itself.

The probe that allows or forbids a tier of precision is made of it, and so are the benchmarks of the codecs. Knows the engine,
the codecs and how a prefill worker rates tokens; no transport, no Ray, no HTTP.
"""
