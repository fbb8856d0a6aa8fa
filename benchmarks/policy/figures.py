"""What a run of the virtual server has come to: figures, and whether the expectations of the issue hold. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.load.statistics import percentile
from benchmarks.policy.server import Request, Run

DECILE = 10


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds since a request came: until something of it was computed, its first token, its last."""

    num_tokens: int
    num_output: int
    queueing_s: float
    ttft_s: float
    end_to_end_s: float


def times_of(request: Request) -> Times:
    """Of a finished request. Raises `ValueError` for one that is not."""
    if request.started_s is None or request.first_token_s is None or request.ended_s is None:
        raise ValueError(f"request {request.work.request_id} has not ended")
    at = request.job.arrival_s
    return Times(
        num_tokens=request.job.num_prompt + request.job.num_output,
        num_output=request.job.num_output,
        queueing_s=request.started_s - at,
        ttft_s=request.first_token_s - at,
        end_to_end_s=request.ended_s - at,
    )


def figures(run: Run) -> dict[str, Any]:
    """Distributions in seconds, rates, and P99 of the longest tenth (by prompt and output) against the shortest."""
    times = [times_of(request) for request in run.requests]
    ended_s = max(request.job.arrival_s + one.end_to_end_s for request, one in zip(run.requests, times, strict=True))
    by_length = sorted(times, key=lambda one: one.num_tokens)
    size = max(1, len(by_length) // DECILE)
    shortest, longest = by_length[:size], by_length[-size:]
    long_s, short_s = p99(longest, _end_to_end), p99(shortest, _end_to_end)
    return {
        "ttft_s": _spread([one.ttft_s for one in times]),
        "queueing_s": _spread([one.queueing_s for one in times]),
        "end_to_end_s": _spread([one.end_to_end_s for one in times]),
        "requests_per_s": round(len(times) / ended_s, 4),
        "output_tokens_per_s": round(sum(one.num_output for one in times) / ended_s, 2),
        "long_ttft_p99_s": round(p99(longest, lambda one: one.ttft_s), 3),
        "long_end_to_end_p99_s": round(long_s, 3),
        "short_end_to_end_p99_s": round(short_s, 3),
        "long_to_short": round(long_s / short_s, 3),
        "steps": run.num_steps,
        "preemptions": run.num_preemptions,
        "length_error_octaves": round(run.length_error_octaves, 3),
    }


def p99(times: Sequence[Times], of: Callable[[Times], float]) -> float:
    """The 99th percentile of one of the times."""
    return percentile([of(one) for one in times], 0.99)


def _end_to_end(one: Times) -> float:
    return one.end_to_end_s


def _spread(values: list[float]) -> dict[str, float]:
    shares = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    found = {name: round(percentile(values, share), 3) for name, share in shares.items()}
    return {"mean": round(sum(values) / len(values), 3)} | found


def expectations(by_policy: dict[str, dict[str, Any]]) -> dict[str, float | None]:
    """The four ratios that were expected, of one trace at one load, None without the policies that they compare:

    * `aging_mean_ttft`: mean TTFT of `spf-aging` over `spf`; expected at most 1.05,
    * `aging_long_ttft`: P99 TTFT of the longest tenth, the same two; at most 0.5,
    * `qba_kept_gain`: what of the gain of `sjf` over `fcfs` in mean time to the end `qba` keeps; at least 0.7,
    * `qba_long`: P99 to the end of the longest tenth, `qba` over `fcfs`; at most 1.25.
    """
    found: dict[str, float | None] = dict.fromkeys(("aging_mean_ttft", "aging_long_ttft", "qba_kept_gain", "qba_long"))
    if {"spf", "spf-aging"} <= by_policy.keys():
        spf, aging = by_policy["spf"], by_policy["spf-aging"]
        found["aging_mean_ttft"] = round(aging["ttft_s"]["mean"] / spf["ttft_s"]["mean"], 3)
        found["aging_long_ttft"] = round(aging["long_ttft_p99_s"] / spf["long_ttft_p99_s"], 3)
    if {"fcfs", "sjf", "qba"} <= by_policy.keys():
        fcfs, sjf, qba = (by_policy[name] for name in ("fcfs", "sjf", "qba"))
        gain = fcfs["end_to_end_s"]["mean"] - sjf["end_to_end_s"]["mean"]
        kept = fcfs["end_to_end_s"]["mean"] - qba["end_to_end_s"]["mean"]
        found["qba_kept_gain"] = round(kept / gain, 3) if gain > 0 else None
        found["qba_long"] = round(qba["long_end_to_end_p99_s"] / fcfs["long_end_to_end_p99_s"], 3)
    return found
