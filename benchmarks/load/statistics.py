"""What a run has come to: percentiles, rates and goodput of a list of finished requests. Pure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any


@dataclass(frozen=True, slots=True)
class RequestRecord:
    """One request as the client saw it. Times are seconds since the request was due to be sent.

    `event_times_s` are the arrivals of the events that carried tokens; one event can carry several, so
    `output_tokens` (by the server's own count) may be larger than their number. `error` is None for a request that ended well.
    `prompt_tokens` and `cached_tokens` are the server's count too, 0 where it does not say. `retry_after_s` is when a refused
    request may be sent again, None where the server does not say.
    """

    event_times_s: tuple[float, ...] = ()
    end_s: float = 0.0
    output_tokens: int = 0
    error: str | None = None
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    retry_after_s: float | None = None

    @property
    def ttft_s(self) -> float | None:
        """Time to the first token."""
        return self.event_times_s[0] if self.event_times_s else None

    @property
    def second_token_s(self) -> float | None:
        """Time to the second token, taken to be the second event unless there is only one event for several tokens."""
        if len(self.event_times_s) > 1:
            return self.event_times_s[1]
        return self.ttft_s if self.output_tokens > 1 else None

    @property
    def gaps_s(self) -> list[float]:
        """All gaps between tokens: between events, and 0 for each further token that shared an event."""
        times = self.event_times_s
        gaps = [later - earlier for earlier, later in pairwise(times)]
        return gaps + [0.0] * max(0, self.output_tokens - len(times)) if times else []


@dataclass(frozen=True, slots=True)
class Limits:
    """A request is good when it ended well, its TTFT kept `ttft_s` and each of its gaps `itl_s`; None: no limit."""

    ttft_s: float | None = None
    itl_s: float | None = None


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which `share` (0 to 1) of `values` lie, linear between two. Raises `ValueError` on none."""
    if not values or not 0 <= share <= 1:
        raise ValueError(f"needs values and a share in [0, 1], got {len(values)} values and {share}")
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = math.floor(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def is_good(record: RequestRecord, limits: Limits) -> bool:
    """Whether a request kept the limits."""
    if record.error is not None or record.ttft_s is None:
        return False
    is_first_in_time = limits.ttft_s is None or record.ttft_s <= limits.ttft_s
    return is_first_in_time and (limits.itl_s is None or max(record.gaps_s, default=0.0) <= limits.itl_s)


def summary(records: Sequence[RequestRecord], took_s: float, limits: Limits) -> dict[str, Any]:
    """The run's numbers, in seconds and per second; a distribution of nothing is None."""
    done = [record for record in records if record.error is None]
    output_tokens = sum(record.output_tokens for record in done)
    num_good = sum(is_good(record, limits) for record in records)
    return {
        "requests": len(records),
        "completed": len(done),
        "errors": dict(Counter(record.error for record in records if record.error is not None)),
        "took_s": round(took_s, 3),
        "output_tokens": output_tokens,
        "output_tokens_per_s": round(output_tokens / took_s, 3),
        "requests_per_s": round(len(done) / took_s, 4),
        "ttft_s": spread([record.ttft_s for record in done if record.ttft_s is not None]),
        "time_to_second_token_s": spread([r.second_token_s for r in done if r.second_token_s is not None]),
        "inter_token_gap_s": spread([gap for record in done for gap in record.gaps_s]),
        "end_to_end_s": spread([record.end_s for record in done]),
        "tokens_that_shared_an_event": sum(max(0, r.output_tokens - len(r.event_times_s)) for r in done),
        "goodput": {
            "ttft_limit_s": limits.ttft_s,
            "itl_limit_s": limits.itl_s,
            "good_requests": num_good,
            "good_share": round(num_good / len(records), 4) if records else None,
            "good_requests_per_s": round(num_good / took_s, 4),
        },
    }


def spread(values: Sequence[float]) -> dict[str, float] | None:
    """Number, mean, p50, p90, p99 and largest of `values`; None when there are none."""
    if not values:
        return None
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
    found = {name: round(percentile(values, share), 6) for name, share in shares.items()}
    return {"num": len(values), "mean": round(sum(values) / len(values), 6)} | found
