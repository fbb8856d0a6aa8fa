"""Where a transfer fits between the circuits that are booked. Pure functions on gaps.

The rules are Sunflow's (CoNEXT 2016) for reservations that must not disturb earlier ones: a gap is used only if it is longer
than the reconfiguration delay and something useful; what does not fit goes to later gaps. Inferred here, for KV that is being
produced while it is sent: a window ends no earlier than the prefill has produced its bytes, and its circuit is set up as late
as this allows, so that no port waits for a prefill.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from protocol.errors import PlanRefused
from transfer.planner.lease import TransferDemand, Window
from transfer.planner.timeline import Gap

ROUNDING_BYTES = 64 * 1024
"""A plan is kept if no more than this is late: seconds since 1970, as doubles, are exact to 12 KB at 400 Gb/s."""


@dataclass(frozen=True, slots=True)
class CircuitRules:
    """How a switch is used.

    `reconfiguration_s` passes between the order for a circuit and its first byte. A window carries at least `min_slice_bytes`
    (or the whole rest), and a transfer is cut into at most `max_windows`.
    """

    reconfiguration_s: float
    min_slice_bytes: int = 1 << 20
    max_windows: int = 4

    def __post_init__(self) -> None:
        if self.reconfiguration_s < 0.0 or self.min_slice_bytes < 1 or self.max_windows < 1:
            raise PlanRefused(f"a delay must not be negative, slices and windows at least one: {self}")


@dataclass(frozen=True, slots=True)
class Rest:
    """The last `num_bytes` of a demand, to be placed at a circuit's rate; what comes before them is placed or there already."""

    demand: TransferDemand
    num_bytes: int
    bytes_per_second: int

    @property
    def first_byte_at(self) -> float:
        """When the prefill has produced what comes before the rest: nothing can be sent earlier."""
        return self.demand.start + self._num_before / self.demand.produced_bytes_per_second

    def full_end(self, ready: float) -> float:
        """When all of the rest can have crossed, on a circuit that is up at `ready`."""
        return max(max(ready, self.first_byte_at) + self.num_bytes / self.bytes_per_second, self.demand.produced_at)

    def sendable_bytes(self, ready: float, end: float) -> int:
        """How much of the rest fits between `ready` and `end` and is produced by then."""
        first = max(ready, self.first_byte_at)
        produced = self.demand.produced_bytes_per_second * (end - self.demand.start) - self._num_before
        return int(min(self.num_bytes, self.bytes_per_second * (end - first), produced))

    @property
    def _num_before(self) -> int:
        return self.demand.num_bytes - self.num_bytes


def place(rest: Rest, rules: CircuitRules, free: Iterable[Gap], max_windows: int) -> tuple[Window, ...]:
    """Windows for all of the rest, in order of time: the earliest useful gaps, the last one where everything left fits.

    `free` are the gaps of both ports in order of time; the last of them has no end, so that there is always an answer.
    """
    windows: list[Window] = []
    for gap in free:
        window = _window_in(gap, rest, rules)
        least = min(rest.num_bytes, rules.min_slice_bytes if len(windows) < max_windows - 1 else rest.num_bytes)
        if window is None or window.num_bytes < least:
            continue
        windows.append(window)
        if window.num_bytes == rest.num_bytes:
            return tuple(windows)
        rest = replace(rest, num_bytes=rest.num_bytes - window.num_bytes)
    raise PlanRefused("the gaps of two ports must end with one that has no end")


def are_in_time(windows: Sequence[Window], rest: Rest) -> bool:
    """Whether the prefill produces the rest early enough for each of its windows to carry what is planned into it."""
    num_later = sum(window.num_bytes for window in windows[1:])
    num_first = max(0, rest.num_bytes - num_later)
    for index, window in enumerate(windows):
        num_bytes = window.num_bytes if index else num_first
        if (
            rest.sendable_bytes(window.end - num_bytes / window.bytes_per_second, window.end)
            < num_bytes - ROUNDING_BYTES
        ):
            return False
        rest = replace(rest, num_bytes=rest.num_bytes - num_bytes)
    return True


def as_late_as_may_be(held: Window, now: float, reconfiguration_s: float) -> Window:
    """The window with the same end and bytes, holding its ports no longer than needed.

    `held` may start too early for its bytes. If there is time for setting the circuit up anew, the window begins with that;
    otherwise the circuit that is up (or being set up) at `held.ready` is kept.
    """
    ready = held.end - held.num_bytes / held.bytes_per_second
    start = ready - reconfiguration_s
    if start < max(now, held.start):
        return held
    return Window(start, ready, held.end, held.bytes_per_second, held.num_bytes)


def _window_in(gap: Gap, rest: Rest, rules: CircuitRules) -> Window | None:
    ready = gap.start if gap.is_connected else gap.start + rules.reconfiguration_s
    full_end = rest.full_end(ready)
    end = min(gap.end, full_end)
    num_bytes = rest.num_bytes if full_end <= gap.end else rest.sendable_bytes(ready, end)
    if num_bytes <= 0 or end <= ready:
        return None
    held = Window(gap.start, ready, end, rest.bytes_per_second, num_bytes)
    return as_late_as_may_be(held, gap.start, rules.reconfiguration_s)
