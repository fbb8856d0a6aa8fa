"""A histogram for what is counted once a token: its observation costs a tenth of `prometheus_client.Histogram`'s."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector


class TokenHistogram(Collector):
    """Counts observations by `buckets`, upper bounds in ascending order. Exposed as any other histogram.

    It has no lock: one thread, that of the event loop, may observe, and any may collect. What is collected meanwhile is of
    one moment, but for the sum, which may be an observation ahead.
    """

    def __init__(self, registry: CollectorRegistry, name: str, text: str, buckets: Sequence[float]) -> None:
        self._name = name
        self._text = text
        self._bounds = tuple(buckets)
        self._counts = [0] * (len(buckets) + 1)
        self._sum = 0.0
        registry.register(self)

    def observe(self, amount: float) -> None:
        """Counts one observation; a bound belongs to the bucket below it."""
        self._sum += amount
        self._counts[bisect_left(self._bounds, amount)] += 1

    def describe(self) -> Iterable[Metric]:
        """The family without samples, by which a registry finds names that are taken."""
        return [HistogramMetricFamily(self._name, self._text)]

    def collect(self) -> Iterable[Metric]:
        """The family as it is now, with its counts added up."""
        counts = list(self._counts)
        total = 0
        samples = []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), counts, strict=True):
            total += count
            samples.append((bound, total))
        return [HistogramMetricFamily(self._name, self._text, buckets=samples, sum_value=self._sum)]
