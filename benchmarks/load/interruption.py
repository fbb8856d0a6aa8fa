"""How a benchmark that has set something up is interrupted: once, and then it takes down in order."""

from __future__ import annotations

import signal
from types import FrameType

INTERRUPTED = 130
"""The exit code."""
SIGNALS = (signal.SIGINT, signal.SIGTERM)


def interrupt_once() -> None:
    """From now on the first of the signals raises `KeyboardInterrupt`; those after it are ignored."""
    for one in SIGNALS:
        signal.signal(one, _interrupt)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """What follows must not cut the removal short, every step of which has a deadline."""
    for one in SIGNALS:
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt
