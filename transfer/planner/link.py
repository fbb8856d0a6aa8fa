"""What a link carries, by measurement: an average of achieved bytes per second. Pure; the clock is the caller's."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

FORGET_S = 1.0
"""A second of sending forgets two thirds of what was measured before."""
MIN_SAMPLE_BYTES = 64 * 1024
"""Fewer bytes measure latency, not bandwidth."""

SLOW_BYTES_PER_SECOND = 50e6
"""Under this people are told that a link is slow: a 10 Gbit/s network gives twenty times as much."""


@dataclass(frozen=True, slots=True)
class LinkEstimate:
    """Achieved rate of one pair of workers: bytes and the seconds that they took, older ones counting less.

    A sample thus counts for as long as it took: two writes that end together count once, though the second seems to have
    taken no time.
    """

    num_bytes: float = 0.0
    seconds: float = 0.0
    num_samples: int = 0

    @property
    def bytes_per_second(self) -> float:
        """The rate; 0 until the first sample."""
        return self.num_bytes / self.seconds if self.seconds else 0.0

    def sample(self, num_bytes: int, seconds: float) -> LinkEstimate:
        """The estimate after `num_bytes` crossed in `seconds`; too small a sample changes nothing."""
        if num_bytes < MIN_SAMPLE_BYTES or seconds <= 0.0:
            return self
        kept = math.exp(-seconds / FORGET_S)
        return LinkEstimate(kept * self.num_bytes + num_bytes, kept * self.seconds + seconds, self.num_samples + 1)


@dataclass(frozen=True, slots=True)
class WriteEnd:
    """A write that is terminal, and whether its bytes have arrived."""

    number: int
    num_bytes: int
    is_done: bool


class LinkMeter:
    """Makes samples of the writes of one link, of which several may be in flight.

    A sample is what ended since the last end, or since the link was idle. Paced writes measure their pace, so that neither
    they nor what was in flight beside them are samples; nor is what was in flight beside a write that failed.
    """

    def __init__(self) -> None:
        self.estimate = LinkEstimate()
        self._in_flight: dict[int, bool] = {}  # number -> whether it is paced, in the order of posting
        self._last_number = -1
        self._last_spoilt = -1  # writes up to this number are no samples
        self._since = 0.0
        self._num_bytes = 0

    def posted(self, number: int, now: float, *, is_paced: bool) -> None:
        """A write begins. Numbers go up."""
        if not self._in_flight:
            self._restart(now)
        self._in_flight[number] = is_paced
        self._last_number = number

    def ended(self, ends: Iterable[WriteEnd], now: float) -> None:
        """Writes that were seen to have ended together; those that are not known here are ignored."""
        known = [end for end in ends if end.number in self._in_flight]
        if not known:
            return
        if any(self._in_flight.values()) or not all(end.is_done for end in known):
            self._last_spoilt = self._last_number
        is_sample = next(iter(self._in_flight)) > self._last_spoilt
        for end in known:
            del self._in_flight[end.number]
        if not is_sample:
            self._restart(now)
            return
        self._num_bytes += sum(end.num_bytes for end in known)
        if self._num_bytes >= MIN_SAMPLE_BYTES:
            self.estimate = self.estimate.sample(self._num_bytes, now - self._since)
            self._restart(now)

    def _restart(self, now: float) -> None:
        self._since, self._num_bytes = now, 0
