"""The thread that owns a transport: it pumps one endpoint, sleeps briefly while transfers are open and soundly when none is."""

from __future__ import annotations

import logging
import threading
import time
from typing import Protocol

from transfer.commands import CommandQueue

log = logging.getLogger(__name__)

BUSY_POLL_S = 0.001
"""Pause between polls while chunks move: short against the time that a chunk takes."""
BUSY_FOR_S = 0.02
"""How long after something moved more is expected to."""
OPEN_POLL_S = 0.005
"""Pause while a ticket is open and nothing moves, that is mostly while a prompt is computed. A poll costs the core that
computes about 0.1 ms; at every millisecond the step beside it took a tenth longer.
"""
IDLE_POLL_S = 0.25
"""Pause while none is open. Nothing can arrive then but tags of transfers that are long over."""


class Endpoint(Protocol):
    """One side of the transfer protocol, `Sender` or `Receiver`."""

    commands: CommandQueue

    @property
    def is_active(self) -> bool:
        """Whether a tag or a state may come in soon."""
        ...

    def pump(self, now: float) -> bool:
        """Does all that can be done without waiting; true when something was done."""
        ...

    def close(self) -> None:
        """Ends the transport."""
        ...


class PumpThread:
    """Runs `endpoint.pump` until stopped. A failure inside it is logged, ends the thread and is told by `failure`."""

    def __init__(self, endpoint: Endpoint, name: str) -> None:
        self._endpoint = endpoint
        self._is_stopping = False
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Ends the thread, then the transport, within `timeout_s`."""
        self._is_stopping = True
        self._endpoint.commands.bell.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        bell = self._endpoint.commands.bell
        moved_at = 0.0
        try:
            while not self._is_stopping:
                now = time.monotonic()
                if self._endpoint.pump(now):
                    moved_at = now
                    continue
                bell.wait(self._pause_s(now - moved_at))
                bell.clear()
        except Exception as error:
            self.failure = error
            log.exception("the transfer thread ended")
            raise
        finally:
            self._endpoint.close()

    def _pause_s(self, quiet_s: float) -> float:
        if not self._endpoint.is_active:
            return IDLE_POLL_S
        return BUSY_POLL_S if quiet_s < BUSY_FOR_S else OPEN_POLL_S
