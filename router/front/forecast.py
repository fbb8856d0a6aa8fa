"""How long a request that comes now would wait for its first token, learned from those before it. Pure.

By Little's law a wait is those who wait, over the rate at which they are served: what each of those ahead costs is learned
from every first token, wherever the time went, in this router or in the workers. Does not know the workers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

SMOOTHING = 0.1
LEAST_S = 1e-6
"""No wait is shorter: logarithms are taken of them."""


@dataclass(slots=True)
class Wait:
    """One choice without a first token: since when, and how many were ahead of it then. `is_over` once it has one or left."""

    joined_at: float
    num_ahead: int
    is_over: bool = False


class FirstTokenForecast:
    """Belongs to one event loop. `num_waiting` counts the waits that are not over."""

    def __init__(self) -> None:
        self.num_waiting = 0
        self._log_seconds_each: float | None = None

    def expected_s(self) -> float:
        """What whoever joins now must expect, its own turn included; 0 when nobody is ahead, or nothing was learned yet."""
        if self._log_seconds_each is None or not self.num_waiting:
            return 0.0
        return (self.num_waiting + 1) * math.exp(self._log_seconds_each)

    def join(self, now: float) -> Wait:
        """A wait begins."""
        wait = Wait(now, self.num_waiting)
        self.num_waiting += 1
        return wait

    def answered(self, wait: Wait, now: float) -> None:
        """The first token is there, which teaches what each of those ahead has cost. Nothing happens when the wait was over.

        Smoothed as logarithms: after a stall, which makes a few waits very long, the forecast is soon right again.
        """
        if wait.is_over:
            return
        self.left(wait)
        found = math.log(max(now - wait.joined_at, LEAST_S) / (wait.num_ahead + 1))
        known = self._log_seconds_each
        self._log_seconds_each = found if known is None else known + SMOOTHING * (found - known)

    def left(self, wait: Wait) -> None:
        """It was given up, which teaches nothing. Idempotent."""
        if not wait.is_over:
            wait.is_over = True
            self.num_waiting -= 1
