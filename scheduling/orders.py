"""Queue orders: in which sequence waiting requests are looked at. An order is a key; the smallest goes first."""

from __future__ import annotations

from collections.abc import Callable

from scheduling.work import Work

Order = Callable[[Work, float], tuple[float, ...]]
"""Maps waiting work and the time now (seconds) to its key."""


def fcfs(work: Work, now: float) -> tuple[float, ...]:
    """First come, first served. Starves nobody."""
    del now
    return (work.arrival,)


ORDERS: dict[str, Order] = {"fcfs": fcfs}
