"""What a load of one rate has come to, once it has settled in: goodput, refusals, and what else went wrong. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from benchmarks.load.client import LoadRequest
from benchmarks.load.statistics import Limits, RequestRecord, is_good, spread

REFUSED = "http_429"


@dataclass(frozen=True, slots=True)
class Stage:
    """A load of `rate` requests a second over `duration_s`, of which the first `settle_s` do not count."""

    rate: float
    duration_s: float
    settle_s: float


@dataclass(frozen=True, slots=True)
class StageFigures:
    """`good_per_s` are answers that came whole, with the first token in time, by when they ended. Refusals are those of
    requests that came when the load had settled, and `errors` all else that did.
    """

    rate: float
    num_requests: int
    good_per_s: float
    num_late: int
    num_refused: int
    num_refused_without_retry_after: int
    errors: dict[str, int]
    ttft_s: dict[str, float] | None
    refused_after_s: dict[str, float] | None

    def figures(self) -> dict[str, Any]:
        """For a result."""
        return asdict(self) | {"rate": round(self.rate, 3), "good_per_s": round(self.good_per_s, 3)}


def figures_of(
    stage: Stage, requests: Sequence[LoadRequest], records: Sequence[RequestRecord], limits: Limits
) -> StageFigures:
    """The figures of a stage whose `requests` came to `records`, in the same order."""
    both = list(zip(requests, records, strict=True))
    num_good = sum(
        is_good(record, limits) and stage.settle_s <= request.arrival_s + record.end_s <= stage.duration_s
        for request, record in both
    )
    counted = [record for request, record in both if request.arrival_s >= stage.settle_s]
    done = [one for one in counted if one.error is None]
    refused = [one for one in counted if one.error == REFUSED]
    return StageFigures(
        rate=stage.rate,
        num_requests=len(records),
        good_per_s=num_good / (stage.duration_s - stage.settle_s),
        num_late=sum(not is_good(one, limits) for one in done),
        num_refused=len(refused),
        num_refused_without_retry_after=sum(one.retry_after_s is None for one in refused),
        errors=dict(Counter(one.error for one in counted if one.error not in (None, REFUSED))),
        ttft_s=spread([one.ttft_s for one in done if one.ttft_s is not None]),
        refused_after_s=spread([one.end_s for one in refused]),
    )
