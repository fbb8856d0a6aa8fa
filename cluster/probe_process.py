"""The probe as `kvferry serve` runs it: in a process of its own, whose memory is free again before any worker starts."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import IO

from cluster.settings import ServeSettings
from protocol.errors import ConfigError, DeadlineExceeded, KvferryError
from protocol.wire_rule import WireCodec
from quality.verdict import Verdict

KILL_AFTER_S = 5.0
EXIT_VERDICTS = (0, 3, 4)
"""What `kvferry probe` ends with when it has a verdict, whatever that is."""
EXIT_BAD_INPUT = 2


@dataclass(frozen=True, slots=True)
class ProbeOrder:
    """What to probe, until when, by `time.monotonic`, and who hears of progress."""

    model: Path
    settings: ServeSettings
    deadline: float
    say: Callable[[str], None]

    def command(self, codec: WireCodec) -> list[str]:
        """The command line: the same device and types as the workers', and all cores, since no worker runs yet."""
        settings = self.settings
        options = {
            "codec": codec.value,
            "device": settings.device,
            "dtype": settings.compute_dtype,
            "kv-dtype": settings.kv_dtype,
        }
        flags = [f"--{name}={value}" for name, value in options.items()]
        return [sys.executable, "-m", "cluster.cli", "probe", str(self.model), *flags, "--json"]


def probe_in_process(order: ProbeOrder, codec: WireCodec) -> Verdict:
    """Runs the probe, which stores its verdict, and returns it. Its process has ended when this returns or raises.

    Raises `DeadlineExceeded` at the order's deadline, and `ConfigError` or `KvferryError` with what the probe said.
    """
    timeout_s = order.deadline - time.monotonic()
    if timeout_s <= 0:
        raise DeadlineExceeded(f"no time is left to probe {codec}: raise --startup-timeout")
    with _sigterm_raises(), tempfile.TemporaryFile("w+", encoding="utf-8") as out:
        status, last = _run(order.command(codec), timeout_s, out, order.say)
        out.seek(0)
        found = out.read()
    if status in EXIT_VERDICTS:
        return Verdict.from_json(found)
    if time.monotonic() >= order.deadline:
        raise DeadlineExceeded(f"the probe of {codec} did not end in time: raise --startup-timeout")
    kind = ConfigError if status == EXIT_BAD_INPUT else KvferryError
    raise kind(f"the probe of {codec} ended with status {status}: {last}; --kv-wire-int4 on or off does without it")


def _run(command: list[str], timeout_s: float, out: IO[str], say: Callable[[str], None]) -> tuple[int, str]:
    """The exit status, and the last line of standard error, whose lines are passed on as they come."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.PIPE, text=True)
    watch = threading.Timer(timeout_s, process.kill)
    watch.start()
    last = "it said nothing"
    try:
        for line in process.stderr or ():
            if line.strip():
                last = line.strip()
                say(last)
        return process.wait(KILL_AFTER_S), last.removeprefix("kvferry: ")
    finally:
        watch.cancel()
        _end(process)


def _end(process: subprocess.Popen[str]) -> None:
    """Asks first, then kills; nothing to do for a process that has ended."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(KILL_AFTER_S)
    if process.stderr is not None:
        process.stderr.close()


@contextmanager
def _sigterm_raises() -> Iterator[None]:
    """While a process of ours runs, SIGTERM ends this one by an exception, so that the other is ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, frame: FrameType | None) -> None:
        del frame
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
