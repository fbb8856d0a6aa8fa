"""Loads and figures of the policies on a real cluster, without one."""

from __future__ import annotations

import pytest

from benchmarks.load.statistics import RequestRecord
from benchmarks.policy.served import (
    PolicyServed,
    TwoLengths,
    at_once,
    comparison,
    requests_at_rate,
    saturation_per_s,
    served_figures,
    table,
    two_lengths,
)
from benchmarks.policy.workload import Job, Workload

WORKLOAD = Workload("w", 1.0, 20, tuple(Job(float(number), 10 * (number + 1), 2) for number in range(20)))


def _record(ttft_s: float, error: str | None = None) -> RequestRecord:
    return RequestRecord((ttft_s,), 2 * ttft_s, 2, error)


def test_two_lengths_has_the_share_of_long_prompts() -> None:
    """Exactly, whatever the seed; the same seed gives the same load."""
    for seed in range(3):
        load = two_lengths(TwoLengths(), 40, seed)
        assert load == two_lengths(TwoLengths(), 40, seed)
        assert sum(job.num_prompt >= 512 for job in load.jobs) == 6
        assert all(job.num_prompt >= 512 or 24 <= job.num_prompt <= 72 for job in load.jobs)
    with pytest.raises(ValueError, match="at least 2"):
        two_lengths(TwoLengths(), 1, 0)


def test_requests_come_at_the_mean_rate() -> None:
    """With prompts of the jobs' lengths that differ from the first block on; a backlog comes at once."""
    requests = requests_at_rate(two_lengths(TwoLengths(), 21, 0), 2.0, 1000, 0)
    assert requests[-1].arrival_s == pytest.approx(20 / 2.0)
    assert len({tuple(request.prompt[:16]) for request in requests}) == 21
    backlog = at_once(WORKLOAD, 3, 1000, 0)
    assert [(one.arrival_s, len(one.prompt), one.output_tokens) for one in backlog] == [
        (0, 10, 2),
        (0, 20, 2),
        (0, 30, 2),
    ]


def test_the_saturation_rate_goes_by_tokens() -> None:
    """60 tokens in 2 s are 30 a second, of which a request of the whole load has 105 in the mean."""
    backlog = at_once(WORKLOAD, 3, 1000, 0)
    assert saturation_per_s(WORKLOAD, backlog, [_record(1.0), _record(2.0), _record(0.5)]) == pytest.approx(30 / 105)
    with pytest.raises(RuntimeError, match="2 of the 3"):
        saturation_per_s(WORKLOAD, backlog, [_record(1.0), _record(2.0), _record(0.5, "timeout")])


def test_figures_tell_the_longest_and_the_shortest_tenth() -> None:
    """Of 20, two each; what failed is counted and is in no distribution."""
    found = served_figures(WORKLOAD, [_record(number + 1.0) for number in range(20)], 30.0)
    assert (found["long_ttft_s"]["mean"], found["short_ttft_s"]["mean"]) == (19.5, 1.5)
    assert found["ttft_s"]["mean"] == 10.5
    assert found["long_end_to_end_p99_s"] == pytest.approx(39.98)
    failed = served_figures(WORKLOAD, [_record(1.0, "timeout")] * 20, 30.0)
    assert failed["errors"] == ["timeout"] * 20
    assert failed["ttft_s"] is None
    assert PolicyServed(failed, {}).has_failed


def test_policies_are_compared_with_fcfs() -> None:
    """And by what the virtual clock's benchmark expects; a policy without an answer has no ratio, and a row."""
    records = [_record(number + 1.0) for number in range(20)]
    fcfs = served_figures(WORKLOAD, records, 30.0)
    halved = served_figures(WORKLOAD, [_record(one.event_times_s[0] / 2) for one in records], 30.0)
    failed = served_figures(WORKLOAD, [_record(1.0, "timeout")] * 20, 30.0)
    served = {
        name: PolicyServed(figures, {"prefill-0": {"num_steps": 3}})
        for name, figures in (("fcfs", fcfs), ("spf", fcfs), ("spf-aging", halved), ("sjf", failed))
    }
    found = comparison(served)
    assert found["over_fcfs"]["spf-aging"]["long_ttft_s_p99"] == pytest.approx(0.5)
    assert "sjf" not in found["over_fcfs"]
    assert found["expectations"]["aging_mean_ttft"] == pytest.approx(0.5)
    assert found["expectations"]["qba_kept_gain"] is None
    assert found["policies"]["fcfs"]["workers"] == {"prefill-0": {"num_steps": 3}}
    assert "| `sjf` | - | - | - | - | - |" in table(served)
