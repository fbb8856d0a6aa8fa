"""`oracle`: shortest remaining processing time with the true output length. For benchmarks only.

Rule: that of `srpt`, when the caller puts the true output into `Work.num_predicted_output`. It shows what a better prediction
could gain. Servers refuse it by its name (`choose.py`), since no server knows how long an answer will be.
"""

from __future__ import annotations

from scheduling.policies.srpt import ShortestRemainingFirst


class Oracle(ShortestRemainingFirst):
    """By what is left of the true work, which the caller knows."""
