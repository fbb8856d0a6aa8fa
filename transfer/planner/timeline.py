"""Who holds a port that serves one peer at a time, and when. A value; knows no demands and no rates.

The state is Sunflow's reservation table (CoNEXT 2016): for each port the windows that are sold, in order, without overlap.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from heapq import merge

from transfer.planner.lease import Window

Names = tuple[str, str]
"""Source and destination."""


@dataclass(frozen=True, slots=True)
class Booking:
    """A window, whose it is, and between whom the circuit is."""

    window: Window
    lease_id: int
    names: Names


@dataclass(frozen=True, slots=True)
class Gap:
    """A time in which both ports of a pair are free. `is_connected`: their circuit is up when the gap begins."""

    start: float
    end: float
    is_connected: bool


@dataclass(frozen=True, slots=True)
class Timeline:
    """One port's bookings by time. They never overlap."""

    bookings: tuple[Booking, ...] = ()

    def first_ending_after(self, time: float) -> int:
        """Index of the first booking that is not over at `time`."""
        return bisect_right(self.bookings, time, key=_end)

    def is_free(self, start: float, end: float) -> bool:
        """Whether nothing is booked within `[start, end)`."""
        index = self.first_ending_after(start)
        return index == len(self.bookings) or _start(self.bookings[index]) >= end

    def ending_at(self, time: float) -> Booking | None:
        """The booking that ends at this very instant."""
        index = bisect_left(self.bookings, time, key=_end)
        is_there = index < len(self.bookings) and _end(self.bookings[index]) == time
        return self.bookings[index] if is_there else None

    def starting_at(self, time: float) -> Booking | None:
        """The booking that starts at this very instant."""
        index = bisect_left(self.bookings, time, key=_start)
        is_there = index < len(self.bookings) and _start(self.bookings[index]) == time
        return self.bookings[index] if is_there else None

    def next_start(self, time: float) -> float:
        """When the next booking starts, at or after `time`; infinity if none does."""
        index = bisect_left(self.bookings, time, key=_start)
        return _start(self.bookings[index]) if index < len(self.bookings) else math.inf

    def with_booking(self, booking: Booking) -> Timeline:
        """The timeline with one more booking, whose time must be free."""
        index = bisect_left(self.bookings, _start(booking), key=_start)
        return Timeline((*self.bookings[:index], booking, *self.bookings[index:]))

    def without(self, booking: Booking) -> Timeline:
        """The timeline without a booking that it holds; itself if it does not."""
        index = bisect_left(self.bookings, _start(booking), key=_start)
        if index == len(self.bookings) or self.bookings[index] != booking:
            return self
        return Timeline(self.bookings[:index] + self.bookings[index + 1 :])

    def pruned(self, now: float) -> Timeline:
        """The timeline without what is over."""
        index = self.first_ending_after(now)
        return Timeline(self.bookings[index:]) if index else self


def gaps(egress: Timeline, ingress: Timeline, names: Names, now: float, useful: float) -> Iterator[Gap]:
    """The times from `now` on in which both ports are free, but those that are over at `useful`; the last has no end.

    Bookings before `useful` are skipped by bisection, but the last of each port: the circuit may be up behind it.
    """
    since = max(now, useful)
    left = max(0, egress.first_ending_after(since) - 1)
    right = max(0, ingress.first_ending_after(since) - 1)
    cursor, is_connected = now, False
    for booking in merge(egress.bookings[left:], ingress.bookings[right:], key=_start):
        if _start(booking) > max(cursor, useful):
            yield Gap(cursor, _start(booking), is_connected)
        if _end(booking) > cursor:
            cursor, is_connected = _end(booking), booking.names == names
    yield Gap(cursor, math.inf, is_connected)


def _start(booking: Booking) -> float:
    return booking.window.start


def _end(booking: Booking) -> float:
    return booking.window.end
