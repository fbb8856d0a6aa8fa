"""Work handed to the thread that owns a transport, and the bell that wakes it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

Answer = TypeVar("Answer")


class CommandQueue:
    """Any thread submits; the owner runs all that is due. A command that raises fails its future and nothing else."""

    def __init__(self) -> None:
        self._commands: deque[Callable[[], None]] = deque()
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

        self._commands.append(run)
        self.bell.set()
        return future

    def run_due(self) -> int:
        """Runs what has been queued so far, on the calling thread; returns how many commands that were."""
        num_run = 0
        while self._commands:
            self._commands.popleft()()
            num_run += 1
        return num_run
