"""`priority`: what the request says, and waiting counts.

Rule: by `LEVEL_S` * priority + time of arrival: a level of priority is worth `LEVEL_S` seconds of waiting. A smaller priority
goes first, 0 is the default, and what lies beyond `MOST_URGENT` or `LEAST_URGENT` counts as those. Source: the form of the
ageing score in the BLIS simulator (base plus a rate times the wait), and vLLM's sign of priorities. vLLM's own rule is strict,
without ageing, and starves the least urgent; the seconds and the limits here are inferred.

Bound: overtaken only by what comes within `LEVEL_S` for each level that others may be more urgent.
"""

from __future__ import annotations

from scheduling.policies.policy import KeyPolicy
from scheduling.waiting_line import Key
from scheduling.work import Work

LEVEL_S = 10.0
MOST_URGENT, LEAST_URGENT = -100, 100


def level_of(priority: int) -> int:
    """The priority, within the limits."""
    return max(MOST_URGENT, min(LEAST_URGENT, priority))


class PriorityFirst(KeyPolicy):
    """By priority, with a head start for age."""

    def key(self, work: Work) -> Key:
        """When it would have come to be equal to one of priority 0, then the number of the request."""
        priority = work.priority
        if not MOST_URGENT <= priority <= LEAST_URGENT:
            priority = level_of(priority)
        return LEVEL_S * priority + work.arrival_s, work.arrival

    def overtaken_for_s(self, work: Work) -> float:
        """As long as something of the most urgent level could."""
        return LEVEL_S * (level_of(work.priority) - MOST_URGENT)
