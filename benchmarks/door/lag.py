"""How long an event loop is kept from running: a probe in the loop, and a watcher that sees which call kept it.

Knows nothing of what runs in the loop.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from dataclasses import dataclass, field
from types import FrameType

PROBE_EVERY_S = 0.001
WATCH_EVERY_S = 0.0005
STALL_S = 0.005
"""The loop may never be blocked for longer."""
SHOWN_FRAMES = 4
SWITCH_INTERVAL_S = 0.0005
"""Python hands its lock over this often while the watcher wants it, so that the watcher sees a stall while it lasts."""


@dataclass(frozen=True, slots=True)
class LagReport:
    """Worst oversleep of the probe, the processor time that the loop's thread itself used meanwhile, the most that it used
    in any gap, and where stalls were.

    `num_stalls` counts oversleeps above `STALL_S`; `places` maps the innermost frames that were seen in a stall, of the
    loop's thread and of others that were at work, to how often.
    """

    max_lag_s: float
    cpu_s_of_max: float
    max_cpu_s: float
    p99_lag_s: float
    num_stalls: int
    places: dict[str, int]


@dataclass(slots=True)
class LagProbe:
    """Started in the loop that is to be watched; `take` may be called from any thread."""

    _lags: list[tuple[float, float]] = field(default_factory=list)
    _places: dict[str, int] = field(default_factory=dict)
    _beat_at: float = field(default_factory=time.monotonic)
    _is_over: bool = False

    async def run(self) -> None:
        """Probes until cancelled."""
        before, self._beat_at = sys.getswitchinterval(), time.monotonic()
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        watcher = threading.Thread(target=self._watch, args=(threading.get_ident(),), name="lag-watcher", daemon=True)
        watcher.start()
        try:
            while True:
                start, cpu_start = time.monotonic(), time.thread_time()
                self._beat_at = start + PROBE_EVERY_S
                await asyncio.sleep(PROBE_EVERY_S)
                self._lags.append((time.monotonic() - start - PROBE_EVERY_S, time.thread_time() - cpu_start))
        finally:
            self._is_over = True
            sys.setswitchinterval(before)

    def take(self) -> LagReport:
        """What was seen since the last time."""
        lags, self._lags = self._lags, []
        places, self._places = self._places, {}
        return summarise_lags(lags, places)

    def _watch(self, loop_thread: int) -> None:
        """Looks at all threads whenever the probe is overdue."""
        while not self._is_over:
            time.sleep(WATCH_EVERY_S)
            if time.monotonic() - self._beat_at < STALL_S:
                continue
            for thread, frame in sys._current_frames().items():
                if thread == threading.get_ident() or (thread != loop_thread and _is_waiting(frame)):
                    continue
                place = ("loop: " if thread == loop_thread else "thread: ") + _place(frame)
                self._places[place] = self._places.get(place, 0) + 1


def summarise_lags(lags: list[tuple[float, float]], places: dict[str, int]) -> LagReport:
    """The report of pairs (oversleep, processor time used during it), in seconds."""
    if not lags:
        return LagReport(0.0, 0.0, 0.0, 0.0, 0, places)
    ordered = sorted(lags)
    worst, cpu = ordered[-1]
    p99 = ordered[(len(ordered) - 1) * 99 // 100][0]
    max_cpu_s = max(used for _, used in lags)
    return LagReport(worst, cpu, max_cpu_s, p99, sum(lag > STALL_S for lag, _ in lags), places)


def _is_waiting(frame: FrameType) -> bool:
    return frame.f_code.co_name in ("wait", "get", "select", "_worker", "poll", "accept", "_poll", "recv", "_recv")


def _place(frame: FrameType | None) -> str:
    """The innermost frames, the innermost first."""
    names: list[str] = []
    while frame is not None and len(names) < SHOWN_FRAMES:
        code = frame.f_code
        short = "/".join(code.co_filename.split("/")[-2:])
        names.append(f"{code.co_qualname} ({short}:{frame.f_lineno})")
        frame = frame.f_back
    return " < ".join(names)
