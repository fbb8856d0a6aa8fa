"""How a worker's process ends without losing anything: it is drained, lingers until all that it said has been read, and is then
collected by whoever supervises it, or goes by itself. Knows nothing of Ray.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from protocol.drain import Drain

log = logging.getLogger(__name__)

LINGER_S = 0.5
"""From the last word to the end: it is on its way to a router that long at most."""
QUIET_WITHIN_S = 5.0
"""For transfers to end after the time is over. One with a peer that is stopped may never."""
COLLECT_WITHIN_S = 10.0
"""For a supervisor to notice that the process may end."""
LOOK_EVERY_S = 0.05


class Drainable(Protocol):
    """A worker of either kind."""

    draining: Drain

    def drain(self, timeout_s: float, restart: bool) -> None:
        """Takes nothing new; what is here goes on for `timeout_s` at most."""
        ...


class Ending:
    """Of one process. `end` is called at most once, after `terminate`, when nobody has ended the process meanwhile."""

    def __init__(
        self, drain_timeout_s: float, end: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._drain_timeout_s = drain_timeout_s
        self._end = end
        self._clock = clock
        self._worker: Drainable | None = None
        self._quiet_since: float | None = None
        self._thread: threading.Thread | None = None

    def begin(self, worker: Drainable) -> None:
        """There is a worker from now on; before, the process has nothing to lose."""
        self._worker = worker

    @property
    def wants_restart(self) -> bool:
        """Whether a new process is to take its place once it is drained."""
        order = self._worker.draining.order if self._worker is not None else None
        return order is not None and order.wants_restart

    def is_drained(self) -> bool:
        """Whether the process may be ended: all that it had has ended and was told, or its time is long over."""
        if self._worker is None or (order := self._worker.draining.order) is None:
            return False
        now = self._clock()
        if self._worker.draining.is_drained:
            if self._quiet_since is None:
                self._quiet_since = now
            return now - self._quiet_since >= LINGER_S
        return now > order.ends_at + QUIET_WITHIN_S

    def terminate(self) -> None:
        """Drains the worker, then ends the process; returns at once. For a signal's handler: it takes no lock and logs nothing,
        which its own thread might be doing just now.
        """
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="ending", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        if self._worker is not None:
            log.info("told to end: draining for %g s at most", self._drain_timeout_s)
            self._worker.drain(self._drain_timeout_s, restart=True)
            while not self.is_drained():
                time.sleep(LOOK_EVERY_S)
            if not self._worker.draining.is_drained:
                log.warning("ending with transfers that do not end: their peers are silent")
            time.sleep(COLLECT_WITHIN_S)
            log.info("nobody has ended this process: it ends by itself")
        self._end()
