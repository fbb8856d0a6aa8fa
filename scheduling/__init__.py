"""Who goes next: queue orders, step budgets, admission and preemption. Pure functions on values, given the time.

Shared by the prefill and the decode worker. Knows counts of tokens and blocks; no tensor, no block id, no I/O.
"""
