"""Runs a model over one paged KV cache: a batch of token ids in, sampled token ids out.

`engine.build.build_engine` makes an `Engine`; schedulers speak to it in the plain values of `engine.batch` and own the
blocks through `engine.block_pool`. Knows nothing of requests' lives, queues, other workers or the wire.
"""
