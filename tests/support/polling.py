"""Waiting for what another thread, process or wire will do: polls with a deadline, never a bare sleep."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")

POLL_PAUSE_S = 0.0005


def poll_until(
    step: Callable[[], Answer],
    *,
    timeout_s: float = 10.0,
    what: str = "what was polled for",
    pause_s: float = POLL_PAUSE_S,
) -> Answer:
    """Calls `step` until it returns something true, and returns that. Raises `TimeoutError` after `timeout_s`."""
    never = threading.Event()
    deadline = time.monotonic() + timeout_s
    while True:
        answer = step()
        if answer:
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what} did not happen within {timeout_s} s")
        never.wait(pause_s)
