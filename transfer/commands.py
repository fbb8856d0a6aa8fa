"""Work handed to the thread that owns a transport or an engine, and the bell that wakes it."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from protocol.errors import KvferryError

Answer = TypeVar("Answer")

log = logging.getLogger(__name__)


class CommandQueue:
    """Any thread submits; the owner runs all that is due. A command that raises fails its future and nothing else."""

    def __init__(self) -> None:
        self._commands: deque[tuple[Callable[[], None], Callable[[BaseException], None]]] = deque()
        self._lock = threading.Lock()  # between `submit` and `refuse`: no command is left behind by both
        self._refusal: KvferryError | None = None
        self.bell = threading.Event()

    def submit(self, command: Callable[[], Answer]) -> Future[Answer]:
        """Queues a command; the future holds what it returns or raises."""
        future: Future[Answer] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                future.set_result(command())
            except Exception as error:  # noqa: BLE001 - whatever it is, it belongs to whoever asked
                future.set_exception(error)

        def refuse(error: BaseException) -> None:
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

        with self._lock:
            refusal = self._refusal
            if refusal is None:
                self._commands.append((run, refuse))
        if refusal is not None:
            refuse(refusal)
        self.bell.set()
        return future

    def post(self, command: Callable[[], None]) -> None:
        """Queues a command for whose end nobody waits; what it raises is logged."""
        self.submit(command).add_done_callback(_log_failure)

    def run_due(self) -> int:
        """Runs what has been queued so far, on the calling thread; returns how many commands that were."""
        num_run = 0
        while self._commands:
            self._commands.popleft()[0]()
            num_run += 1
        return num_run

    def refuse(self, error: KvferryError) -> None:
        """The owner runs nothing any more: all that is queued fails with `error`, and all that comes later at once."""
        with self._lock:
            self._refusal = error
            left = [*self._commands]
            self._commands.clear()
        for _, refuse in left:
            refuse(error)


def _log_failure(future: Future[None]) -> None:
    if not future.cancelled() and (error := future.exception()) is not None:
        log.error("a command failed: %s", error, exc_info=error if not isinstance(error, KvferryError) else None)
