"""`kvferry serve` on one of the two hosts, as a user would start it across both. Knows its flags, not what it is asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil

from benchmarks.links.two_hosts import HEAD_PORT, HOSTS, ROOT, Host, end_family

READY_WITHIN_S = 300.0
STOP_WITHIN_S = 30.0
MAX_LINES = 200
SERVES = "kvferry serves "

# The link is what is looked at: neither rule reads a prompt on the other side, even where that would be quicker.
ONE_PREFILL = ("--placement", "spread", "--routing-policy", "least_loaded")
"""A prefill worker on the head, a decode worker on the other host."""
TWO_PREFILLS = ("--prefill", "2", "--decode", "1", "--placement", "pack", "--routing-policy", "round_robin")
"""Two prefill workers on the head, in turn, and one decode worker on the other host."""


def serve_command(host: Host, options: Sequence[str]) -> list[str]:
    """The command on `host` that serves across the two, at any free port. `options` end with one of the two above."""
    across = ["--ray-address", f"{HOSTS[0].address}:{HEAD_PORT}"]
    at = ["--host", host.address, "--port", "0", "--grpc-port", "off"]
    return host.command(sys.executable, "-m", "cluster.cli", "serve", *options, *across, *at)


@contextmanager
def serving(host: Host, options: Sequence[str]) -> Iterator[str]:
    """The URL of a cluster that is ready; it is stopped at the end. Raises `RuntimeError` when it does not get ready."""
    process = subprocess.Popen(
        serve_command(host, options),
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", **host.environment()},
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
