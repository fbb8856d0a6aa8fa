"""The thread that runs a worker's steps: one `tick` after another, and soundly asleep when there is nothing to do."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

log = logging.getLogger(__name__)

IDLE_WAIT_S = 0.25
"""Longest sleep between ticks, in which deadlines are looked at. New work rings the bell and does not wait for it."""


class Ticking(Protocol):
    """A worker's main loop, one turn at a time."""

    @property
    def bell(self) -> threading.Event:
        """Rung by other threads when there is something to do."""
        ...

    def tick(self, now: float) -> bool:
        """One turn; false when there was nothing to do."""
        ...


class StepThread:
    """Runs `worker.tick` until stopped. A failure that the worker does not handle ends the thread and is kept in `failure`."""

    def __init__(self, worker: Ticking, name: str) -> None:
        self._worker = worker
        self._is_stopping = False
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Ends it after the step that is running, within `timeout_s`."""
        self._is_stopping = True
        self._worker.bell.set()
        self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        """Whether steps are still being run."""
        return self._thread.is_alive()

    def _run(self) -> None:
        try:
            while not self._is_stopping:
                self._worker.bell.clear()
                if not self._worker.tick(time.monotonic()):
                    self._worker.bell.wait(IDLE_WAIT_S)
        except Exception as error:
            self.failure = error
            log.exception("the step thread ended")
            raise
