"""Loads for a real cluster on which the order of prompts matters, and what became of them under each policy. Pure."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.load.arrivals import stretched_to_rate
from benchmarks.load.client import LoadRequest
from benchmarks.load.prompts import random_prompt
from benchmarks.load.statistics import RequestRecord, percentile, spread
from benchmarks.load.worker_counts import WorkerCounts
from benchmarks.policy.figures import DECILE, expectations
from benchmarks.policy.workload import Job, Workload

SHARES = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class TwoLengths:
    """Short prompts, and a share of long ones among them. Lengths are drawn evenly from between the two, in tokens."""

    short: tuple[int, int] = (24, 72)
    long: tuple[int, int] = (512, 896)
    output: tuple[int, int] = (4, 24)
    long_share: float = 0.15


def two_lengths(lengths: TwoLengths, num_jobs: int, seed: int) -> Workload:
    """Just that share of long prompts, at least one, in any order; the times are Poisson's. Raises `ValueError` for fewer than
    two jobs.
    """
    if num_jobs < 2:
        raise ValueError(f"a load has at least 2 requests, got {num_jobs}")
    numbers = random.Random(seed)
    num_long = max(1, round(lengths.long_share * num_jobs))
    kinds = [lengths.long] * num_long + [lengths.short] * (num_jobs - num_long)
    numbers.shuffle(kinds)
    jobs = tuple(Job(0.0, numbers.randint(*kind), numbers.randint(*lengths.output)) for kind in kinds)
    return Workload("two lengths", 1.0, num_jobs, jobs).at_random(seed)


def requests_at_rate(workload: Workload, requests_per_s: float, vocab_size: int, seed: int) -> list[LoadRequest]:
    """The jobs with prompts that have nothing in common, at their own times, stretched so that the mean rate is this."""
    times = stretched_to_rate([job.arrival_s for job in workload.jobs], requests_per_s)
    return [
        LoadRequest(time, random_prompt(job.num_prompt, vocab_size, f"policies/{seed}/{number}"), job.num_output)
        for number, (time, job) in enumerate(zip(times, workload.jobs, strict=True))
    ]


def at_once(workload: Workload, num_jobs: int, vocab_size: int, seed: int) -> list[LoadRequest]:
    """The first of the jobs as a backlog."""
    return [
        LoadRequest(0.0, random_prompt(job.num_prompt, vocab_size, f"backlog/{seed}/{number}"), job.num_output)
        for number, job in enumerate(workload.jobs[:num_jobs])
    ]


def saturation_per_s(workload: Workload, backlog: Sequence[LoadRequest], records: Sequence[RequestRecord]) -> float:
    """Requests a second that keep the prompts' reader busy: as fast as the backlog was read, by tokens. Raises `RuntimeError`
    when not all of it was.
    """
    firsts = [record.ttft_s for record in records if record.error is None and record.ttft_s]
    if len(firsts) < len(backlog) or not firsts:
        raise RuntimeError(f"{len(firsts)} of the {len(backlog)} requests that were to find the rate got a token")
    tokens_per_s = sum(len(request.prompt) for request in backlog) / max(firsts)
    return tokens_per_s * len(workload.jobs) / sum(job.num_prompt for job in workload.jobs)


def served_figures(workload: Workload, records: Sequence[RequestRecord], took_s: float) -> dict[str, Any]:
    """Distributions in seconds of all that ended well, and of the longest and the shortest tenth, by prompt and output."""
    pairs = [(job, one) for job, one in zip(workload.jobs, records, strict=True) if one.error is None and one.ttft_s]
    by_length = [one for _, one in sorted(pairs, key=lambda pair: pair[0].num_prompt + pair[0].num_output)]
    size = max(1, len(by_length) // DECILE)
    shortest, longest = by_length[:size], by_length[-size:]
    return {
        "requests": len(records),
        "errors": sorted(one.error for one in records if one.error is not None),
        "took_s": round(took_s, 2),
        "ttft_s": spread(_ttfts(by_length)),
        "long_ttft_s": spread(_ttfts(longest)),
        "short_ttft_s": spread(_ttfts(shortest)),
        "end_to_end_s": spread([one.end_s for one in by_length]),
        "long_ttft_p99_s": _p99(_ttfts(longest)),
        "long_end_to_end_p99_s": _p99([one.end_s for one in longest]),
        "short_end_to_end_p99_s": _p99([one.end_s for one in shortest]),
    }


def _ttfts(records: Sequence[RequestRecord]) -> list[float]:
    return [one.ttft_s for one in records if one.ttft_s is not None]


def _p99(values: Sequence[float]) -> float | None:
    return round(percentile(values, 0.99), 3) if values else None


@dataclass(frozen=True, slots=True)
class PolicyServed:
    """What a cluster under one policy has come to."""

    figures: dict[str, Any]
    workers: WorkerCounts

    @property
    def has_failed(self) -> bool:
        """Whether an answer is missing."""
        return bool(self.figures["errors"])


def comparison(served: dict[str, PolicyServed]) -> dict[str, Any]:
    """Every figure by policy, TTFT over that of `fcfs`, and what `benchmarks.policies` expects of the same figures.

    What got no answers has no ratios.
    """
    answered = {name: one.figures for name, one in served.items() if one.figures["ttft_s"]}
    over_fcfs = {}
    if (fcfs := answered.get("fcfs")) is not None:
        for name, one in answered.items():
            over_fcfs[name] = {
                f"{kind}_{share}": round(one[kind][share] / fcfs[kind][share], 4)
                for kind in ("ttft_s", "long_ttft_s", "short_ttft_s")
                for share in SHARES
            }
    return {
        "policies": {name: one.figures | {"workers": one.workers} for name, one in served.items()},
        "over_fcfs": over_fcfs,
        "expectations": expectations(answered),
    }


def table(served: dict[str, PolicyServed]) -> str:
    """Markdown, a row for each policy: times in seconds, mean / P50 / P90 / P99."""
    lines = [
        "| policy | TTFT | longest tenth, TTFT | shortest tenth, TTFT | end to end | longest tenth, P99 end |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in served.items():
        cells = [_four(one.figures[kind]) for kind in ("ttft_s", "long_ttft_s", "short_ttft_s", "end_to_end_s")]
        end_s = one.figures["long_end_to_end_p99_s"]
        lines.append(f"| `{name}` | {' | '.join(cells)} | {'-' if end_s is None else f'{end_s:.2f}'} |")
    return "\n".join(lines)


def _four(found: dict[str, float] | None) -> str:
    return " / ".join(f"{found[share]:.2f}" for share in SHARES) if found else "-"
