"""The processes of a running cluster: who is who, what they hold, and signals to them. Touches only what it started."""

from __future__ import annotations

import os
import re
import signal
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

WORKER_TITLE, ROUTER_TITLE = "ray::WorkerActor", "ray::RouterActor"
_SESSION = re.compile(r"\S*/session_[0-9][^/\s:]*")
_INJECTED = re.compile(r"fault injected: (\w+)")


class Family:
    """The command and all processes below it."""

    def __init__(self, process_id: int) -> None:
        self._command = psutil.Process(process_id)
        self._directory: Path | None = None

    def titled(self, title: str) -> list[psutil.Process]:
        """Those of a title that run."""
        found = []
        for one in self._command.children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if one.status() != psutil.STATUS_ZOMBIE and title in " ".join(one.cmdline()):
                    found.append(one)
        return found

    def router_id(self) -> int:
        """The router's process id. Raises `RuntimeError` unless there is exactly one."""
        found = self.titled(ROUTER_TITLE)
        if len(found) != 1:
            raise RuntimeError(f"{len(found)} routers run, not one")
        return found[0].pid

    def send(self, process_ids: Iterable[int], number: signal.Signals) -> None:
        """A signal to each that is still there. Raises `RuntimeError` for one that the command did not start."""
        own = {one.pid for one in self._command.children(recursive=True)}
        for process_id in process_ids:
            if process_id not in own and psutil.pid_exists(process_id):
                raise RuntimeError(f"process {process_id} is none of the cluster's")
            with suppress(ProcessLookupError):
                os.kill(process_id, number)

    def num_files(self) -> dict[int, int]:
        """Open file descriptors by process: of the workers, the router and the command."""
        held = {}
        for one in [*self.titled(WORKER_TITLE), *self.titled(ROUTER_TITLE), self._command]:
            with suppress(psutil.NoSuchProcess):
                held[one.pid] = one.num_fds()
        return held

    def log_directory(self) -> Path:
        """Where Ray keeps what the processes wrote. Raises `RuntimeError` when it is not known."""
        if self._directory is None:
            for one in self._command.children(recursive=True):
                with suppress(psutil.NoSuchProcess):
                    if found := _SESSION.search(" ".join(one.cmdline()).replace("=", " ")):
                        self._directory = Path(found.group()) / "logs"
                        break
        if self._directory is None or not self._directory.is_dir():
            raise RuntimeError(f"no logs of Ray's at {self._directory}")
        return self._directory

    def num_injected(self) -> Counter[str]:
        """How many chunks were harmed, by kind, as the prefill workers' logs say."""
        counts: Counter[str] = Counter()
        for path in self.log_directory().glob("worker-*.err"):
            counts.update(_INJECTED.findall(path.read_text(errors="replace")))
        return counts
