"""What a network device carried while a request ran, from the kernel's counters. Knows nothing of what the bytes mean."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SAMPLE_EVERY_S = 0.01
EDGE_SHARE = 0.01
"""The first and last hundredth of the bytes are left out of a crossing's times: questions and answers cross too."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Bytes that a device had received and sent at a time of `time.monotonic`."""

    at_s: float
    received_bytes: int
    sent_bytes: int


@dataclass(frozen=True, slots=True)
class Crossing:
    """The direction that carried more: its bytes, when they began and ended to cross, and how many had before a moment."""

    num_bytes: int
    start_s: float
    end_s: float
    bytes_before: int

    @property
    def hidden_ratio(self) -> float:
        """The share of the bytes that had crossed before the moment."""
        return self.bytes_before / self.num_bytes

    @property
    def rate_mbit(self) -> float:
        """Megabits a second from the start to the end."""
        took_s = self.end_s - self.start_s
        return self.num_bytes * (1 - 2 * EDGE_SHARE) * 8 / took_s / 1e6 if took_s > 0 else 0.0


def counters(device: str, text: str) -> tuple[int, int]:
    """Bytes received and sent by a device, from the text of `/proc/net/dev`. Raises `ValueError` when it is not there."""
    for line in text.splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == device:
            columns = numbers.split()
            return int(columns[0]), int(columns[8])
    raise ValueError(f"no network device {device} here")


def crossing(samples: Sequence[Sample], moment_s: float) -> Crossing | None:
    """What crossed over all samples; times are those of the samples. None when nothing did."""
    if not samples:
        return None
    first, last = samples[0], samples[-1]
    is_sent = last.sent_bytes - first.sent_bytes > last.received_bytes - first.received_bytes
    moved = [
        one.sent_bytes - first.sent_bytes if is_sent else one.received_bytes - first.received_bytes for one in samples
    ]
    total = moved[-1]
    if total <= 0:
        return None
    times = [one.at_s for one in samples]
    start_s = next(at_s for at_s, num in zip(times, moved, strict=True) if num >= EDGE_SHARE * total)
    end_s = next(at_s for at_s, num in zip(times, moved, strict=True) if num >= (1 - EDGE_SHARE) * total)
    before = [num for at_s, num in zip(times, moved, strict=True) if at_s <= moment_s]
    return Crossing(total, start_s, end_s, before[-1] if before else 0)


@contextmanager
def watched(device: str) -> Iterator[list[Sample]]:
    """A list that grows by a sample of a device of this network namespace every `SAMPLE_EVERY_S`, until the end."""
    samples: list[Sample] = [_sample(device)]
    over = threading.Event()

    def watch() -> None:
        while not over.wait(SAMPLE_EVERY_S):
            samples.append(_sample(device))

    watcher = threading.Thread(target=watch, name="cable", daemon=True)
    watcher.start()
    try:
        yield samples
    finally:
        over.set()
        watcher.join(10 * SAMPLE_EVERY_S)


def _sample(device: str) -> Sample:
    text = Path("/proc/self/net/dev").read_text(encoding="ascii")
    return Sample(time.monotonic(), *counters(device, text))
