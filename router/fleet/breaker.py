"""Keeps requests from a worker that fails them one after the other: open after some failures in a row, closed again by one
probe that succeeds. Pure: the caller has the clock, and says which failures are the worker's own.

The three states are those of M. Nygard, "Release It!" (2007), chapter "Stability Patterns".
"""

from __future__ import annotations

from enum import StrEnum

MAX_FAILURES = 3
"""In a row, with no success between."""
OPEN_S = 2.0
MAX_OPEN_S = 30.0


class BreakerState(StrEnum):
    """Closed: requests go to the worker. Open: none do. Half open: none but one probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class CircuitBreaker:
    """Of one incarnation of a worker. Times are seconds of one clock.

    What ends while it is open began before it opened, and changes nothing. While there is a probe, any end decides.
    """

    def __init__(self) -> None:
        self._num_failures = 0
        self._open_s = OPEN_S
        self._open_until: float | None = None
        self._is_probed = False

    @property
    def is_closed(self) -> bool:
        """Whether requests go to the worker."""
        return self._open_until is None

    def state(self, now: float) -> BreakerState:
        """Half open from the end of the open time on, until a probe has decided."""
        if self._open_until is None:
            return BreakerState.CLOSED
        return BreakerState.HALF_OPEN if self._is_probed or now >= self._open_until else BreakerState.OPEN

    def failed(self, now: float) -> None:
        """A request failed, by the worker's own fault. A probe that failed doubles the time for which it stays open."""
        if self._is_probed:
            self._open_s = min(2 * self._open_s, MAX_OPEN_S)
            self._open(now)
        elif self._open_until is None:
            self._num_failures += 1
            if self._num_failures >= MAX_FAILURES:
                self._open(now)

    def succeeded(self) -> None:
        """The worker has done its part of a request."""
        if self._is_probed:
            self.reset()
        elif self._open_until is None:
            self._num_failures = 0

    def take_probe(self, now: float) -> bool:
        """Whether the caller may send a probe, and nobody else until it has decided or was given back."""
        if self._is_probed or self.state(now) is not BreakerState.HALF_OPEN:
            return False
        self._is_probed = True
        return True

    @property
    def is_probed(self) -> bool:
        """Whether a probe is under way."""
        return self._is_probed

    def give_back_probe(self) -> None:
        """The probe told nothing of this worker: another may be sent."""
        self._is_probed = False

    def reset(self) -> None:
        """As new: closed, nothing counted."""
        self._num_failures = 0
        self._open_s = OPEN_S
        self._open_until = None
        self._is_probed = False

    def _open(self, now: float) -> None:
        self._num_failures = 0
        self._is_probed = False
        self._open_until = now + self._open_s
