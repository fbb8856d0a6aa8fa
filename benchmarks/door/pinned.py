"""Servers in processes of their own, each kept on given cores, called by name over a pipe."""

from __future__ import annotations

import multiprocessing
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import psutil

from protocol.errors import DeadlineExceeded, KvferryError

CALL_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 15.0
SHOWN_LOG_LINES = 30


class Servant(Protocol):
    """What lives in the other process. Any further method can be called too, if arguments and result can be pickled."""

    def start(self) -> Any:
        """Serves, and says where."""
        ...

    def stop(self) -> None:
        """Ends."""
        ...


class PinnedProcess:
    """A process on `cores` in which the servant that `make` gives lives. `make` crosses by pickling.

    What it writes to standard error, its log above all, goes to the file `log_path`.
    """

    def __init__(self, name: str, make: Callable[[], Servant], cores: Sequence[int], log_path: Path) -> None:
        context = multiprocessing.get_context("spawn")
        self._log_path = log_path
        self._calls, theirs = context.Pipe()
        self._process = context.Process(
            target=_serve, args=(make, tuple(cores), log_path, theirs), name=name, daemon=True
        )
        self._process.start()
        theirs.close()
        self._facts = psutil.Process(self._process.pid)

    def call(self, name: str, *arguments: Any) -> Any:
        """What the servant's method `name` returns. Raises `KvferryError` with its traceback when it raises."""
        self._calls.send((name, arguments))
        if not self._calls.poll(CALL_TIMEOUT_S):
            raise DeadlineExceeded(f"{self._process.name} did not answer {name} within {CALL_TIMEOUT_S:.0f} s")
        try:
            is_well, result = self._calls.recv()
        except EOFError:
            raise KvferryError(f"{self._process.name} ended during {name}:\n{self._last_words()}") from None
        if not is_well:
            raise KvferryError(f"{self._process.name} failed in {name}:\n{self._last_words()}\n{result}")
        return result

    def _last_words(self) -> str:
        return "\n".join(self._log_path.read_text(errors="replace").splitlines()[-SHOWN_LOG_LINES:])

    def cpu_s(self) -> float:
        """Processor time that it has used so far, in seconds."""
        times = self._facts.cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        """Stops the servant and waits for its process, which is killed when it does not end."""
        self._calls.close()
        self._process.join(STOP_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()
            self._process.join(STOP_TIMEOUT_S)


def _serve(make: Callable[[], Servant], cores: tuple[int, ...], log_path: Path, calls: Connection) -> None:
    """The process: runs until the other end of the pipe is closed, by `close` or by the end of who made it."""
    os.sched_setaffinity(0, cores)
    with log_path.open("ab") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    servant = make()
    try:
        while True:
            try:
                name, arguments = calls.recv()
            except EOFError:
                return
            try:
                calls.send((True, getattr(servant, name)(*arguments)))
            except Exception:  # noqa: BLE001 - told to who called
                calls.send((False, traceback.format_exc()))
    finally:
        servant.stop()
