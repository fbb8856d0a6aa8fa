"""A real cluster in processes of its own: `kvferry serve` as a user starts it, and what is left after it ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from cluster.http_client import get_json
from tests.support.polling import poll_until

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN_S = 240.0
GONE_WITHIN_S = 10.0


class Serving:
    """A running `kvferry serve`."""

    def __init__(self, argv: Sequence[str], environment: Mapping[str, str], prefix: Sequence[str] = ()) -> None:
        self.url = ""
        self.lines: deque[str] = deque(maxlen=400)
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-m", "cluster.cli", "serve", *argv],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._is_ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def wait_ready(self) -> None:
        """Until the URL has been printed. Fails with the output when the command ends before."""
        if not self._is_ready.wait(READY_WITHIN_S) or not self.url:
            raise RuntimeError("kvferry did not become ready:\n" + "\n".join(self.lines))

    def cluster(self) -> Any:
        """The router's view of the cluster."""
        return get_json(f"{self.url}/cluster")

    def worker(self, name: str) -> Any:
        """One worker of that view."""
        return next(one for one in self.cluster()["workers"] if one["name"] == name)

    def wait_idle(self, timeout_s: float = 15.0) -> None:
        """Until every block and every slot is free on every worker, as the router sees it."""

        def is_idle() -> bool:
            statuses = [one["status"] for one in self.cluster()["workers"]]
            return all(
                one["num_free_blocks"] == one["num_blocks"]
                and one["num_free_slots"] == one["num_slots"]
                and one["num_running"] == one["num_waiting"] == 0
                for one in statuses
            )

        poll_until(is_idle, timeout_s=timeout_s, what="that all blocks and slots are free", pause_s=0.1)

    def stop(self) -> float:
        """Ctrl-C; the seconds until the command and every process that it started are gone."""
        family = psutil.Process(self.process.pid).children(recursive=True)
        start = time.monotonic()
        self.process.send_signal(signal.SIGINT)
        self.process.wait(GONE_WITHIN_S)
        gone, alive = psutil.wait_procs(family, timeout=max(0.0, GONE_WITHIN_S - (time.monotonic() - start)))
        del gone
        if alive:
            raise RuntimeError(f"still there {GONE_WITHIN_S} s after Ctrl-C: {alive}")
        return time.monotonic() - start

    def kill(self) -> None:
        """Ends everything without ceremony."""
        if self.process.poll() is not None:
            return
        for one in psutil.Process(self.process.pid).children(recursive=True):
            one.kill()
        self.process.kill()
        self.process.wait(GONE_WITHIN_S)

    def _read(self) -> None:
        if self.process.stdout is None:
            return
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith("kvferry serves "):
                self.url = line.split()[-1]
            if line.startswith("try:"):
                self._is_ready.set()
        self._is_ready.set()


@contextmanager
def serving(*argv: str, environment: Mapping[str, str] | None = None) -> Iterator[Serving]:
    """A cluster that is ready; stopped and looked after at the end."""
    server = Serving([*argv, "--port", "0"], environment or {})
    try:
        server.wait_ready()
        yield server
        server.stop()
    finally:
        server.kill()
