"""When requests are sent: an open loop, which does not wait for answers. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence


def poisson_arrivals(rate_per_s: float, num_requests: int, seed: int) -> list[float]:
    """Arrival times in seconds, the first at 0, with exponential gaps of mean `1 / rate_per_s`."""
    if rate_per_s <= 0 or num_requests < 1:
        raise ValueError(f"rate and number of requests must be positive, got {rate_per_s} and {num_requests}")
    source = random.Random(f"arrivals/{seed}")
    times = [0.0]
    while len(times) < num_requests:
        times.append(times[-1] + source.expovariate(rate_per_s))
    return times


def stretched_to_rate(times: Sequence[float], rate_per_s: float) -> list[float]:
    """The same pattern of arrivals, stretched or squeezed so that the mean gap becomes `1 / rate_per_s`."""
    if rate_per_s <= 0:
        raise ValueError(f"the rate must be positive, got {rate_per_s}")
    span = times[-1] - times[0] if times else 0.0
    if span <= 0:
        return [0.0 for _ in times]
    factor = (len(times) - 1) / rate_per_s / span
    return [(time - times[0]) * factor for time in times]
