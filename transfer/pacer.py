"""When the next chunk of a planned transfer may be posted: a token bucket, and a bound on what is in flight. Pure.

Knows paces, bytes and times; of tickets, slots and wires it knows nothing. The clock is the caller's.
"""

from __future__ import annotations

import math

from protocol.pace import Pace
from transfer.pump import OPEN_POLL_S
from transfer.shipping_contract import ShippingConfig

MIN_IN_FLIGHT = 2
"""Chunks that may always be in flight: while one is on the wire the next is posted, so that the link does not fall idle. Not at
once, but when the first is half through by the allowed rate: a newcomer then waits behind less.
"""
IN_FLIGHT_S = 0.25
"""What may be in flight beyond that: as much as the allowed rate carries in this time. A newcomer on the port, or a slower
pace, waits behind no more; and it is many times a network's round trip, so that it holds nobody back.
"""


class Pacer:
    """The pace of one transfer, and how far what was posted is ahead of it.

    While its pace is shared, at most `allowed * t` bytes and two chunks are posted within any `t` seconds, where a chunk is
    the largest so far and at least what is allowed between two polls. Otherwise only what is in flight is bounded.
    """

    def __init__(self, pace: Pace, now: float, config: ShippingConfig) -> None:
        self._pace = pace
        self._config = config
        self._begun_at = now
        self._posted_at = now
        self._ordered_at = -math.inf
        self._counted_at = now
        self._credit_bytes = 0.0  # negative: what was posted ahead of the pace
        self._chunk_bytes = 0

    def set_pace(self, pace: Pace, ordered_at: float) -> None:
        """A new pace, ordered at a moment. What is still owed stays owed, and is due at the new rate.

        Orders may come late and twice: one that is older than the newest is ignored.
        """
        if ordered_at < self._ordered_at:
            return
        self._count(ordered_at)
        self._ordered_at = ordered_at
        self._pace = pace

    def is_paced(self, now: float) -> bool:
        """Whether the rate holds: another transfer uses a port, and whoever said so was heard of lately."""
        heard_at = max(self._begun_at, self._ordered_at)
        return self._pace.is_shared and now - heard_at <= self._config.pace_lapse_s

    def may_post(self, now: float, num_writes: int, num_bytes: int) -> bool:
        """Whether a chunk may be posted now, while `num_writes` of `num_bytes` in all are in flight."""
        room_bytes = self._pace.allowed_bytes_per_second * IN_FLIGHT_S
        if num_bytes + self._chunk_bytes > room_bytes:
            half_through_at = self._posted_at + num_bytes / 2 / max(1.0, self._pace.allowed_bytes_per_second)
            if num_writes >= MIN_IN_FLIGHT or (num_writes and now < half_through_at):
                return False
        self._count(now)
        return not self.is_paced(now) or self._credit_bytes > -1.0  # less than a byte is owed

    def posted(self, num_bytes: int, now: float) -> None:
        """A chunk was posted. Of those that no rate held back, the last one alone is owed."""
        self._count(now)
        self._posted_at = now
        self._chunk_bytes = max(self._chunk_bytes, num_bytes)
        self._credit_bytes = (self._credit_bytes if self.is_paced(now) else 0.0) - num_bytes

    def _count(self, now: float) -> None:
        """Pays what has become due. A pump that polls late makes up for it, by a chunk or what is due between two polls."""
        elapsed = now - self._counted_at
        if elapsed > 0.0:
            rate = self._pace.allowed_bytes_per_second
            most = max(float(self._chunk_bytes), rate * OPEN_POLL_S)
            self._credit_bytes = min(most, self._credit_bytes + elapsed * rate)
            self._counted_at = now
