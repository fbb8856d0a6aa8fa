"""The virtual server: everybody is served, within the limits, at the cost that was given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.policy.figures import expectations, figures, times_of
from benchmarks.policy.server import Request, Run, Server, ServerSettings
from benchmarks.policy.step_cost import StepCost, TimedStep, fit
from benchmarks.policy.workload import Job
from scheduling.chunk_size import StepWork
from scheduling.policies.choose import BENCHMARK_POLICIES, make_benchmark_policy
from scheduling.work import Work

COST = StepCost(fixed_s=1.0, token_s=0.1, pair_s=0.001)
JOBS = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 90), st.integers(1, 30)), min_size=1, max_size=20).map(
    lambda rows: [Job(float(at), prompt, output) for at, prompt, output in sorted(rows)]
)


def _run(jobs: list[Job], name: str = "fcfs", num_blocks: int = 8, reserve: float = 0.0) -> tuple[Server, Run]:
    settings = ServerSettings(
        COST, num_blocks, max_step_tokens=32, max_sequences=6, max_output=200, kv_reserve=reserve, itl_target_s=5.0
    )
    server = Server(make_benchmark_policy(name), settings)
    return server, server.run(jobs)


@given(JOBS, st.sampled_from(BENCHMARK_POLICIES), st.sampled_from([0.0, 1.0]), st.integers(8, 20))
def test_everybody_is_served_and_all_blocks_come_back(
    jobs: list[Job], name: str, reserve: float, num_blocks: int
) -> None:
    """Even when blocks run out and requests are preempted: each gets its output, in an order of times that can be."""
    server, run = _run(jobs, name, num_blocks, reserve)
    assert server.num_free == num_blocks
    for request in run.requests:
        times = times_of(request)
        assert 0.0 <= times.queueing_s < times.ttft_s <= times.end_to_end_s
        assert request.work.num_generated == request.job.num_output
        assert request.work.num_known == request.job.num_prompt + request.job.num_output


def test_a_request_alone_takes_what_its_steps_cost() -> None:
    """Two chunks of a prompt and one decode; the last token's KV is never computed."""
    _, run = _run([Job(5.0, 40, 2)])
    steps = [StepWork(32, 32 * 33 // 2), StepWork(8, sum(range(33, 41))), StepWork(1, 41)]
    (request,) = run.requests
    assert request.started_s == 5.0
    assert request.first_token_s == pytest.approx(5.0 + sum(COST.seconds(step) for step in steps[:2]))
    assert request.ended_s == pytest.approx(5.0 + sum(COST.seconds(step) for step in steps))
    assert run.num_steps == 3


def test_reserving_predicted_output_saves_preemptions() -> None:
    """Prompts that fit all at once, with answers that do not."""
    jobs = [Job(float(number), 16, 60) for number in range(30)]
    without, reserved = (_run(jobs, num_blocks=12, reserve=reserve)[1].num_preemptions for reserve in (0.0, 1.0))
    assert reserved < without


def test_a_job_that_never_fits_is_refused() -> None:
    """It would wait for ever."""
    with pytest.raises(ValueError, match="9 blocks does not fit into 8"):
        _run([Job(0.0, 130, 10)])


def test_figures_tell_the_longest_from_the_shortest() -> None:
    """The tenth with the most tokens and that with the fewest, by their own times."""
    requests = []
    for number in range(20):
        job = Job(0.0, 10 + number, 5)
        requests.append(Request(job, Work(str(number), 1, 0, number), 0, 1.0, 2.0, 10.0 * (number + 1)))
    found = figures(Run(tuple(requests), 7, 0, 0.5))
    assert found["long_end_to_end_p99_s"] == pytest.approx(199.9)
    assert found["short_end_to_end_p99_s"] == pytest.approx(19.9)
    assert found["queueing_s"]["mean"] == 1.0
    assert found["requests_per_s"] == 0.1
    assert found["output_tokens_per_s"] == 0.5


def test_expectations_are_ratios_of_what_was_run() -> None:
    """Gain kept and ratios; None where a policy is missing, or where there was nothing to gain."""

    def one(mean: float, long: float) -> dict[str, object]:
        spread = {"mean": mean}
        return {"ttft_s": spread, "end_to_end_s": spread, "long_ttft_p99_s": long, "long_end_to_end_p99_s": long}

    runs = {"fcfs": one(10.0, 20.0), "sjf": one(6.0, 90.0), "qba": one(7.0, 24.0)}
    assert expectations(runs) == {
        "aging_mean_ttft": None,
        "aging_long_ttft": None,
        "qba_kept_gain": 0.75,
        "qba_long": 1.2,
    }
    runs |= {"sjf": one(11.0, 90.0), "spf": one(6.0, 80.0), "spf-aging": one(6.3, 40.0)}
    assert expectations(runs) == {
        "aging_mean_ttft": 1.05,
        "aging_long_ttft": 0.5,
        "qba_kept_gain": None,
        "qba_long": 1.2,
    }


def test_the_fit_finds_the_three_costs() -> None:
    """Exactly where steps take what the form says; refused where they cannot be told apart."""
    works = [StepWork(tokens, pairs) for tokens in (1, 16, 256) for pairs in (10, 5000, 90_000)]
    cost, error = fit([TimedStep(work, COST.seconds(work)) for work in works])
    assert (cost.fixed_s, cost.token_s, cost.pair_s) == pytest.approx((1.0, 0.1, 0.001))
    assert error < 1e-9
    with pytest.raises(ValueError, match="apart"):
        fit([TimedStep(StepWork(4, 40), 1.0)] * 5)
