"""Samples of traces."""

from __future__ import annotations

import pytest

from benchmarks.load.traces import TraceRow
from benchmarks.policy.workload import sample

ROWS = [TraceRow(float(at * at), 100 * at + 1, at) for at in range(1, 51)]


def test_a_sample_keeps_order_and_comes_from_its_seed() -> None:
    """So many rows, the earliest at 0, one a second in the mean, the same each time."""
    found = sample("t", ROWS, 20, 10_000, seed=3)
    times = [job.arrival_s for job in found.jobs]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert times[-1] == pytest.approx(19.0)
    assert len(times) == 20
    assert found == sample("t", ROWS, 20, 10_000, seed=3)
    assert found != sample("t", ROWS, 20, 10_000, seed=4)
    assert [job.arrival_s for job in found.at_rate(2.0)] == [at / 2.0 for at in times]


def test_lengths_are_scaled_to_the_longest_of_the_trace() -> None:
    """Drawn or not, so that the scale is the trace's and not the sample's; short traces stay as they are."""
    found = sample("t", ROWS, 20, 2000, seed=3)
    assert found.scale == pytest.approx(2000 / 5051)
    assert max(job.num_prompt + job.num_output for job in found.jobs) <= 2001
    assert sample("t", ROWS, 99, 10_000, seed=0).scale == 1.0
    assert len(sample("t", ROWS, 99, 10_000, seed=0).jobs) == 50


def test_requests_without_a_rate_are_refused() -> None:
    """One alone, or all at once."""
    with pytest.raises(ValueError, match="have no rate"):
        sample("t", ROWS[:1], 5, 1000, seed=0)


def test_a_prefill_worker_sees_answers_of_one_token() -> None:
    """Times and prompts stay."""
    whole = sample("t", ROWS, 20, 2000, seed=3)
    prompts = whole.prompts_only()
    assert {job.num_output for job in prompts.jobs} == {1}
    assert [(job.arrival_s, job.num_prompt) for job in prompts.jobs] == [
        (job.arrival_s, job.num_prompt) for job in whole.jobs
    ]


def test_a_steady_load_has_the_same_requests() -> None:
    """Other times, from the seed, about one a second; the same lengths in the same order."""
    whole = sample("t", ROWS, 50, 2000, seed=3)
    steady = whole.at_random(seed=1)
    assert [(job.num_prompt, job.num_output) for job in steady.jobs] == [
        (job.num_prompt, job.num_output) for job in whole.jobs
    ]
    assert steady == whole.at_random(seed=1)
    times = [job.arrival_s for job in steady.jobs]
    assert times == sorted(times)
    assert 25 < times[-1] < 100
