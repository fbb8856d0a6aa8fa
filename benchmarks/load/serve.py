"""`kvferry serve` as a user would start it: a command in, the address of a ready cluster out, stopped at the end.

Knows its flags and its first lines, not what it is asked.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

import psutil

from benchmarks.machine import ROOT

READY_WITHIN_S = 300.0
STOP_WITHIN_S = 30.0
END_WITHIN_S = 5.0
MAX_LINES = 200
SERVES = "kvferry serves "


def local_command(options: Sequence[str]) -> list[str]:
    """The command that serves on this machine, at any free port. `options` begin with the model."""
    return [sys.executable, "-m", "cluster.cli", "serve", *options, "--port", "0", "--grpc-port", "off"]


@contextmanager
def served(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """The URL of a cluster that is ready; it is stopped at the end. Raises `RuntimeError` when it does not get ready."""
    process = subprocess.Popen(
        command,
        cwd=ROOT,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,  # Ctrl-C is for who started it, who ends it in order
    )
    try:
        yield _url_of(process)
    finally:
        _stop(process)


def _url_of(process: subprocess.Popen[str]) -> str:
    lines: deque[str] = deque(maxlen=MAX_LINES)
    urls: list[str] = []
    has_started_or_ended = threading.Event()

    def read() -> None:
        for line in process.stdout or ():
            lines.append(line)
            if line.startswith(SERVES):
                urls.append(line.split()[-1])
                has_started_or_ended.set()
        has_started_or_ended.set()

    threading.Thread(target=read, name="serve output", daemon=True).start()
    if not has_started_or_ended.wait(READY_WITHIN_S) or not urls:
        raise RuntimeError("kvferry did not become ready:\n" + "".join(lines))
    return urls[0]


def _stop(process: subprocess.Popen[str]) -> None:
    if process.poll() is not None:
        return
    family = psutil.Process(process.pid)
    process.send_signal(signal.SIGINT)
    try:
        process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        end_family(family)
        process.wait(STOP_WITHIN_S)


def end_family(parent: psutil.Process) -> None:
    """Ends a process and all that it started: first by asking, then by force."""
    end_all([*parent.children(recursive=True), parent])


def end_all(processes: Sequence[psutil.Process]) -> None:
    """The same for these."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):  # it may have ended by itself
            process.terminate()
    _, alive = psutil.wait_procs(processes, timeout=END_WITHIN_S)
    for process in alive:
        with suppress(psutil.NoSuchProcess):
            process.kill()
