"""`fcfs`: first come, first served.

Rule: by arrival. No constants. Never overtaken, so nobody starves; a long prompt makes all behind it wait.
"""

from __future__ import annotations

from scheduling.policies.policy import KeyPolicy
from scheduling.waiting_line import Key
from scheduling.work import Work


class Fcfs(KeyPolicy):
    """By arrival."""

    def key(self, work: Work) -> Key:
        """The number of the request."""
        return (work.arrival,)

    def overtaken_for_s(self, work: Work) -> float:
        """Not at all."""
        return 0.0
