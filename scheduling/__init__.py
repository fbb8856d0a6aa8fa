"""Who goes next, and where: policies, step budgets, chunk sizes, admission, preemption, predicted times and lengths of answers,
the cost of a pair of workers.

Pure functions on values and small classes without a clock, for the workers and the router. Knows counts of tokens, blocks and
bytes; no tensor, no block id, no I/O.
"""
