"""Whether a worker still takes requests, and until when what it has may go on. Knows nothing of requests.

A worker that is about to end is drained first: from then on it refuses what is new, and what it has comes to its end, or goes
on elsewhere once the time is over.
"""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass

from protocol.errors import BadRequest, Draining
from protocol.ids import WorkerId


@dataclass(frozen=True, slots=True)
class DrainOrder:
    """What a worker was told: what still runs at `ends_at` (its own clock, seconds) fails. With `wants_restart` whoever
    supervises the process starts a new one in its place.
    """

    ends_at: float
    wants_restart: bool


class Drain:
    """Of one worker. Any thread may ask or order; `look`, after each turn, is for the worker's own."""

    def __init__(self, identity: WorkerId) -> None:
        self.order: DrainOrder | None = None
        self.is_drained = False
        self._identity = identity
        self._lock = threading.Lock()

    @property
    def is_draining(self) -> bool:
        """Whether nothing new is taken."""
        return self.order is not None

    def begin(self, now: float, timeout_s: float, restart: bool) -> None:
        """Takes nothing new from now on. Of two orders the earlier end holds, and the later word on whether to restart.

        Raises `BadRequest` for a time that is none.
        """
        if not (math.isfinite(timeout_s) and timeout_s >= 0.0):
            raise BadRequest(f"{timeout_s:g} s is no time to drain in: it must be 0 or more", param="timeout_s")
        with self._lock:
            ends_at = now + timeout_s if self.order is None else min(self.order.ends_at, now + timeout_s)
            self.order = DrainOrder(ends_at, restart)

    def check(self) -> None:
        """Raises `Draining` when nothing new is taken."""
        if self.order is not None:
            raise Draining(f"{self._identity} is being drained and takes nothing new")

    def overdue(self, now: float) -> Draining | None:
        """What everything that still runs now ends with; None while it may go on."""
        if self.order is None or now <= self.order.ends_at:
            return None
        return Draining(f"{self._identity} is being drained, and had no time to finish this")

    def look(self, is_idle: bool) -> None:
        """A turn has ended, with nothing held or with something. Once drained, a worker stays so: it takes nothing new."""
        self.is_drained = self.is_drained or (self.order is not None and is_idle)
