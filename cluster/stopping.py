"""How `kvferry serve` is told to stop, and how what runs comes to its end first. Knows nothing of Ray."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Protocol

LOOK_EVERY_S = 0.25


class DrainableCluster(Protocol):
    """A cluster that serves."""

    @property
    def is_lost(self) -> bool:
        """Whether nobody can be served any more."""
        ...

    def look_after(self) -> None:
        """Starts again who has died. Waits for nobody."""
        ...

    def drain(self) -> int | None:
        """Refuses new requests from now on; how many there are yet, None when that is not known just now."""
        ...


class StopSignals:
    """SIGTERM asks for a drain, SIGINT for an end at once; so does every signal after the first."""

    def __init__(self) -> None:
        self.wants_drain = False
        self._is_asked = False
        self._bell = threading.Event()

    def install(self) -> None:
        """From now on signals are taken here. For the main thread."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._take)

    def wait(self, timeout_s: float) -> bool:
        """Whether a signal came, within `timeout_s`. Each is told once."""
        is_rung = self._bell.wait(timeout_s)
        if is_rung:
            self._bell.clear()
        return is_rung

    def _take(self, number: int, frame: FrameType | None) -> None:
        del frame
        self.wants_drain = number == signal.SIGTERM and not self._is_asked
        self._is_asked = True
        self._bell.set()


def drain_cluster(
    cluster: DrainableCluster, timeout_s: float, signals: StopSignals, say: Callable[[str], None]
) -> None:
    """Returns once no request is left, the time is over, or another signal came. Workers that die are replaced meanwhile."""
    deadline = time.monotonic() + timeout_s
    say(f"draining: new requests are refused, those that run have {timeout_s:g} s")
    told: int | None = None
    while (num_left := cluster.drain()) != 0 and not cluster.is_lost:
        if num_left is not None and num_left != told:
            told = num_left
            say(f"requests that still run: {num_left}")
        if time.monotonic() > deadline:
            say("the time is over: what still runs is ended")
            return
        if signals.wait(LOOK_EVERY_S):
            say("told again: what runs is ended")
            return
        cluster.look_after()
