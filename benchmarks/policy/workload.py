"""Requests for the virtual server: a seeded sample of a trace, lengths scaled to the model's context, times to a rate."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.load.traces import TraceRow, scaled_length


@dataclass(frozen=True, slots=True)
class Job:
    """One request: seconds from the first, tokens of its prompt, tokens of its answer."""

    arrival_s: float
    num_prompt: int
    num_output: int


@dataclass(frozen=True, slots=True)
class Workload:
    """`scale` is what lengths were multiplied by, for the longest sequence of the whole trace to fit into the context;
    `jobs` come at the trace's own rate, thinned out, one request a second in the mean.
    """

    name: str
    scale: float
    num_rows: int
    jobs: tuple[Job, ...]

    def prompts_only(self) -> Workload:
        """With answers of one token: what a prefill worker sees of it."""
        jobs = tuple(Job(job.arrival_s, job.num_prompt, 1) for job in self.jobs)
        return Workload(self.name, self.scale, self.num_rows, jobs)

    def at_random(self, seed: int) -> Workload:
        """With exponential gaps of a second in the mean instead of the trace's: a steady load, without its bursts."""
        numbers, jobs, at = random.Random(seed), [], 0.0
        for job in self.jobs:
            jobs.append(Job(at, job.num_prompt, job.num_output))
            at += numbers.expovariate(1.0)
        return Workload(self.name, self.scale, self.num_rows, tuple(jobs))

    def at_rate(self, requests_per_s: float) -> list[Job]:
        """With all gaps shortened or lengthened alike."""
        return [Job(job.arrival_s / requests_per_s, job.num_prompt, job.num_output) for job in self.jobs]


def sample(name: str, rows: Sequence[TraceRow], num_jobs: int, max_context: int, seed: int) -> Workload:
    """`num_jobs` rows drawn without repetition, in their order; all if there are fewer. Raises `ValueError` on fewer than two,
    or when they all come at once.
    """
    scale = min(1.0, max_context / max(row.prompt_tokens + row.output_tokens for row in rows))
    drawn = sorted(random.Random(seed).sample(range(len(rows)), k=min(num_jobs, len(rows))))
    chosen = [rows[index] for index in drawn]
    span_s = chosen[-1].arrival_s - chosen[0].arrival_s
    if len(chosen) < 2 or span_s <= 0:
        raise ValueError(f"{name}: {len(chosen)} requests within {span_s} s have no rate")
    per_s = (len(chosen) - 1) / span_s
    jobs = tuple(
        Job(
            arrival_s=(row.arrival_s - chosen[0].arrival_s) * per_s,
            num_prompt=scaled_length(row.prompt_tokens, scale),
            num_output=scaled_length(row.output_tokens, scale),
        )
        for row in chosen
    )
    return Workload(name, scale, len(rows), jobs)
