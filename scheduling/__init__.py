"""Who goes next, and where: queue orders, step budgets, admission, preemption, prefill times, the cost of a pair of workers.

Pure functions on values, given the time, for the workers and the router. Knows counts of tokens, blocks and bytes; no tensor,
no block id, no I/O.
"""
