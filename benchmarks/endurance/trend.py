"""Whether a figure grows: a straight line through its readings, and how far its slope can be trusted. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

TWO_SIDED_95 = 1.96


@dataclass(frozen=True, slots=True)
class Trend:
    """`slope` of the readings over what they were taken at, true to `half_width` with 95 % confidence; the line's own values
    at the first and the last of them.
    """

    slope: float
    half_width: float
    first: float
    last: float

    def grows_faster_than(self, slope: float) -> bool:
        """Whether even the least slope that the readings allow is above `slope`."""
        return self.slope - self.half_width > slope

    def figures(self, unit: str) -> dict[str, Any]:
        """For a result, the slope in `unit`."""
        fields = {name: round(value, 3) for name, value in asdict(self).items()}
        return {f"slope_{unit}": fields.pop("slope"), f"slope_{unit}_half_width": fields.pop("half_width"), **fields}


def trend(places: Sequence[float], readings: Sequence[float]) -> Trend:
    """Least squares of `readings` over `places`, in their order. Raises `ValueError` for fewer than three different places.

    The error is Newey and West's (1987), with a window of the root of the number of readings: what memory shows now it shows a
    moment later too, so that the plain error would be far too small.
    """
    if len(places) != len(readings) or len(set(places)) < 3:
        raise ValueError(f"a trend needs three different places, got {len(places)} and {len(readings)} readings")
    x = np.asarray(places, dtype=np.float64)
    y = np.asarray(readings, dtype=np.float64)
    centred = x - x.mean()
    spread = float(centred @ centred)
    slope = float(centred @ y) / spread
    line = y.mean() + slope * centred
    scores = centred * (y - line)
    variance = float(scores @ scores)
    num_lags = min(math.isqrt(len(x)), len(x) - 1)
    for lag in range(1, num_lags + 1):
        variance += 2 * (1 - lag / (num_lags + 1)) * float(scores[lag:] @ scores[:-lag])
    half_width = TWO_SIDED_95 * math.sqrt(max(variance, 0.0)) / spread
    return Trend(slope, half_width, float(line[0]), float(line[-1]))
