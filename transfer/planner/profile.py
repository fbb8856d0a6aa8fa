"""How much of something is sold, over time: a step function in whole bytes per second. A value; knows no ports."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class RateProfile:
    """`rates[i]` is sold in `[times[i], times[i + 1])`; nothing before the first time; the last rate is 0.

    Neighbouring rates differ, so that a profile is as long as what is sold is uneven. Rates are integers: holds that are added
    and removed leave no dust.
    """

    times: tuple[float, ...] = ()
    rates: tuple[int, ...] = ()

    def at(self, time: float) -> int:
        """What is sold at an instant."""
        index = bisect_right(self.times, time) - 1
        return self.rates[index] if index >= 0 else 0

    def peak(self, start: float, end: float) -> int:
        """The most that is sold at any instant of `[start, end)`."""
        first = bisect_right(self.times, start) - 1
        last = bisect_left(self.times, end)
        return max(self.rates[max(first, 0) : last], default=0)

    def next_change(self, time: float) -> float:
        """When what is sold changes next after `time`; infinity if never."""
        index = bisect_right(self.times, time)
        return self.times[index] if index < len(self.times) else float("inf")

    def with_hold(self, start: float, end: float, bytes_per_second: int) -> RateProfile:
        """The profile with one more hold of `[start, end)`."""
        return self._changed(start, end, bytes_per_second)

    def without_hold(self, start: float, end: float, bytes_per_second: int) -> RateProfile:
        """The profile without a hold that was added; of a hold that is partly pruned, the rest."""
        if not self.times or end <= self.times[0]:
            return self
        return self._changed(max(start, self.times[0]), end, -bytes_per_second)

    def without_holds(self, holds: Iterable[tuple[float, float, int]]) -> RateProfile:
        """The profile without many holds, each (start, end, bytes per second), in one pass."""
        changes: dict[float, int] = {}
        before = 0
        for time, rate in zip(self.times, self.rates, strict=True):
            changes[time] = rate - before
            before = rate
        for start, end, bytes_per_second in holds:
            changes[start] = changes.get(start, 0) - bytes_per_second
            changes[end] = changes.get(end, 0) + bytes_per_second
        kept = [(time, change) for time, change in sorted(changes.items()) if change]
        return RateProfile(tuple(time for time, _ in kept), tuple(accumulate(change for _, change in kept)))

    def pruned(self, now: float) -> RateProfile:
        """The profile without the past."""
        index = bisect_right(self.times, now) - 1
        if index < 0:
            return self
        if self.rates[index] == 0:
            return RateProfile(self.times[index + 1 :], self.rates[index + 1 :])
        return RateProfile((now, *self.times[index + 1 :]), self.rates[index:])

    def _changed(self, start: float, end: float, change: int) -> RateProfile:
        """The profile with `change` more in `[start, end)`: inside, rates differ as before; only its ends are new."""
        if end <= start or not change:
            return self
        times, rates = self.times, self.rates
        first, last = bisect_left(times, start), bisect_left(times, end)
        before = rates[first - 1] if first else 0
        until = rates[last - 1] if last else 0
        inner_times, inner_rates = times[first:last], tuple([rate + change for rate in rates[first:last]])
        if first == len(times) or times[first] != start:
            inner_times, inner_rates = (start, *inner_times), (before + change, *inner_rates)
        elif inner_rates[0] == before:
            inner_times, inner_rates = inner_times[1:], inner_rates[1:]
        if last == len(times) or times[last] != end:
            inner_times, inner_rates = (*inner_times, end), (*inner_rates, until)
        elif rates[last] == until + change:
            last += 1
        return RateProfile(times[:first] + inner_times + times[last:], rates[:first] + inner_rates + rates[last:])
