"""A clock that only moves when told."""

from __future__ import annotations


class FakeClock:
    """Seconds, from 0 on."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Lets time pass."""
        self.now += seconds
