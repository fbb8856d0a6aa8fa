"""The fault bench: a real cluster under load while its processes are killed, stopped and restarted and its transfers harmed.

`questions` and `schedule` say what is asked and what goes wrong, from a seed; `clients` ask, `processes` and `faults` do harm,
`watch` looks at the cluster, `judge` says what was right, `report` sums it up, `bench` runs all of it.
`python -m tests.chaos --help` is the long form, `test_short.py` the short one.
"""
