"""When a transfer can have which rate, between what is sold of three resources: egress, ingress, and the way between them.

A plan takes at every instant what is free, up to what it asks, for the first `MAX_STEPS` changes of what is sold; for the rest
one rate, from the start that ends soonest, and what is free until then. So a plan never has less than one that waits for a
single window, and has few windows however uneven a port is sold. Pure; all of it is this project's own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from transfer.planner.lease import TransferDemand, Window
from transfer.planner.profile import RateProfile

MAX_STEPS = 8
"""How many changes of what is sold a plan follows."""
MAX_LATER_STARTS = 8
"""How many predicted ends are tried as a start of the rest before the last resort, the end of everything that is sold."""

Key = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Resource:
    """One of the three things that a transfer takes rate from, as it is now."""

    key: Key
    bytes_per_second: int
    sold: RateProfile

    def free_at(self, time: float) -> int:
        """What can be sold at an instant; 0 where a port was measured anew and found narrower than what it sold."""
        return max(0, self.bytes_per_second - self.sold.at(time))

    def excess(self, window: Window) -> int:
        """How much more than there is would be sold with this window; negative where some is left."""
        return self.sold.peak(window.start, window.end) + window.bytes_per_second - self.bytes_per_second


@dataclass(frozen=True, slots=True)
class Search:
    """What windows are looked for: for how many bytes of a demand, at most at which rate, and at least at which."""

    demand: TransferDemand
    num_bytes: int
    limit: int
    least: int

    def asked(self, start: float) -> int:
        """The rate that ends with the prefill, at least that of production; when the prefill is over, as much as may be."""
        left_s = self.demand.produced_at - start
        if self.num_bytes >= self.limit * left_s:
            return self.limit
        return min(self.limit, max(self.demand.produced_bytes_per_second, int(self.num_bytes / left_s)))

    def plan(self, resources: tuple[Resource, ...], start: float) -> tuple[Window, ...]:
        """Windows for all bytes, in order of time, from `start` on."""
        if (whole := self._whole(resources, start)) is not None:
            return (whole,)
        windows: list[Window] = []
        rest, time = self, start
        for _ in range(MAX_STEPS):
            asked, change = rest.asked(time), _next_change(resources, time)
            rate = min(asked, _free_at(resources, time))
            if rate >= min(asked, self.least):
                end = _end(time, rest.num_bytes, rate)
                if end <= change:
                    return _merged((*windows, Window(time, time, end, rate, rest.num_bytes)))
                rest = rest._after(windows, Window(time, time, change, rate, int((change - time) * rate)))
            time = change
        best = rest._soonest(resources, time)
        if best.start > time:
            rate = min(rest.asked(time), rest._free_until(resources, time, best.start))
            if rate >= self.least:
                rest = rest._after(windows, Window(time, time, best.start, rate, int((best.start - time) * rate)))
        end = max(_end(best.start, rest.num_bytes, best.bytes_per_second), self.demand.produced_at)
        last = replace(best, end=min(end, best.end), num_bytes=rest.num_bytes)
        return _merged((*windows, last))

    def _whole(self, resources: tuple[Resource, ...], start: float) -> Window | None:
        """One window at the rate that is asked, which stays the same while it is had; None if it is not free throughout."""
        rate = self.asked(start)
        end = _end(start, self.num_bytes, rate)
        is_free = rate <= self._free_until(resources, start, end)
        return Window(start, start, end, rate, self.num_bytes) if is_free else None

    def _after(self, windows: list[Window], window: Window) -> Search:
        """The search for what is left behind a window, which is added to those before; one byte is always left."""
        num_bytes = min(window.num_bytes, self.num_bytes - 1)
        windows.append(replace(window, num_bytes=num_bytes))
        return replace(self, num_bytes=self.num_bytes - num_bytes)

    def _free_until(self, resources: tuple[Resource, ...], start: float, end: float) -> int:
        return min([each.bytes_per_second - each.sold.peak(start, end) for each in resources])

    def _soonest(self, resources: tuple[Resource, ...], start: float) -> Window:
        least = min(self.least, self.demand.produced_bytes_per_second)
        starts = _later_starts(resources, start, least)
        found = [window for each in starts if (window := self._window_at(resources, each)) is not None]
        return min(found, key=lambda window: (window.end, window.start))

    def _window_at(self, resources: tuple[Resource, ...], start: float) -> Window | None:
        """The fastest window from `start` on whose rate is free from its start to its end; None if too little is free.

        A lower rate makes the window longer and meets more of what is sold: the walk goes on until the rate holds to the end.
        """
        rate = self.asked(start)
        least, time = min(rate, self.least), start
        while True:
            rate = min(rate, _free_at(resources, time))
            if rate < least:
                return None
            end = _end(start, self.num_bytes, rate)
            time = _next_change(resources, time)
            if end <= time:
                return Window(start, start, end, rate, self.num_bytes)


def _later_starts(resources: tuple[Resource, ...], start: float, least: int) -> Iterator[float]:
    """`start`, the next few times at which more becomes free, and the end of all that is sold.

    While one of the resources is full the others do not matter: the search goes on where that one changes.
    """
    yield start
    last = max((each.sold.times[-1] for each in resources if each.sold.times), default=start)
    free, time = _free_at(resources, start), start
    num_tried = 0
    while num_tried < MAX_LATER_STARTS:
        full = [each.sold.next_change(time) for each in resources if each.free_at(time) < least]
        time = max(full) if full else _next_change(resources, time)
        if time >= last:
            break
        before, free = free, _free_at(resources, time)
        if free > before and free >= least:
            num_tried += 1
            yield time
    if last > start:
        yield last


def _merged(windows: tuple[Window, ...]) -> tuple[Window, ...]:
    """The windows with neighbours of the same rate made one."""
    found: list[Window] = []
    for window in windows:
        if found and found[-1].end == window.start and found[-1].bytes_per_second == window.bytes_per_second:
            num_bytes = found[-1].num_bytes + window.num_bytes
            window = replace(found.pop(), end=window.end, num_bytes=num_bytes)
        found.append(window)
    return tuple(found)


def _end(start: float, num_bytes: int, bytes_per_second: int) -> float:
    """When the bytes have crossed; later than `start`, however coarse the clock."""
    return max(start + num_bytes / bytes_per_second, math.nextafter(start, math.inf))


def _free_at(resources: tuple[Resource, ...], time: float) -> int:
    return min([each.free_at(time) for each in resources])


def _next_change(resources: tuple[Resource, ...], time: float) -> float:
    return min([each.sold.next_change(time) for each in resources])
