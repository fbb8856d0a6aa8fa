"""What a link carries, by measurement: a moving average of achieved bytes per second. Pure; the clock is the caller's."""

from __future__ import annotations

from dataclasses import dataclass, replace

SMOOTHING = 0.2
"""Weight of the newest sample: five samples forget two thirds of the past."""
MIN_SAMPLE_BYTES = 64 * 1024
"""Smaller writes measure latency, not bandwidth."""

SLOW_BYTES_PER_SECOND = 50e6
"""Under this people are told that a link is slow: a 10 Gbit/s network gives twenty times as much."""


@dataclass(frozen=True, slots=True)
class LinkEstimate:
    """Achieved rate of one pair of workers; 0 until the first sample."""

    bytes_per_second: float = 0.0
    num_samples: int = 0

    def sample(self, num_bytes: int, seconds: float) -> LinkEstimate:
        """The estimate after one write of `num_bytes` that took `seconds`; too small a write changes nothing."""
        if num_bytes < MIN_SAMPLE_BYTES or seconds <= 0.0:
            return self
        rate = num_bytes / seconds
        weight = SMOOTHING if self.num_samples else 1.0
        mixed = self.bytes_per_second + weight * (rate - self.bytes_per_second)
        return replace(self, bytes_per_second=mixed, num_samples=self.num_samples + 1)
