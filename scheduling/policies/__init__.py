"""Who goes next: one small file a policy, with its rule, its constants, its source and what is inferred in it.

`policy.py` says what a policy is, `choose.py` makes one by its name. A policy decides two things: in which order waiting
requests are looked at for blocks (the first that gets none blocks the rest), and how a step's prefill tokens are divided
among the prompts that hold blocks. Decodes, and resumed requests, come before both (`scheduling/budget.py`).

What each promises about starvation is its `overtaken_for_s`, for requests that fit and once blocks are given back: `fcfs`,
`priority` and `spf-aging` bound how long later requests may go first, `qba` bounds the wait in steps, `spf`, `sjf` and `srpt`
promise nothing. No policy reads a clock.
"""
