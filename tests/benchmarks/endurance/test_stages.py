"""What a load of one rate has come to, from the records of its requests."""

from benchmarks.endurance.stages import Stage, figures_of
from benchmarks.load.client import LoadRequest
from benchmarks.load.statistics import Limits, RequestRecord

STAGE = Stage(rate=2.0, duration_s=10.0, settle_s=2.0)


def _answered(arrival_s: float, ttft_s: float, end_s: float) -> tuple[LoadRequest, RequestRecord]:
    return LoadRequest(arrival_s, [1], 4), RequestRecord((ttft_s,), end_s, 4)


def _failed(arrival_s: float, error: str, retry_after_s: float | None = None) -> tuple[LoadRequest, RequestRecord]:
    return LoadRequest(arrival_s, [1], 4), RequestRecord(end_s=0.1, error=error, retry_after_s=retry_after_s)


def test_goodput_counts_what_ended_in_the_settled_part() -> None:
    """Neither the ramp nor what is left over at the end, and no late first token."""
    rows = [
        _answered(0.0, 0.2, 1.0),
        _answered(1.5, 0.2, 1.0),
        _answered(5.0, 0.2, 1.0),
        _answered(5.0, 3.0, 4.0),
        _answered(9.5, 0.2, 1.0),
    ]
    found = figures_of(STAGE, [row[0] for row in rows], [row[1] for row in rows], Limits(ttft_s=1.0))
    assert found.good_per_s == 2 / 8.0
    assert found.num_late == 1


def test_refusals_and_other_errors_are_told_apart() -> None:
    """Those of the ramp count for neither."""
    rows = [
        _failed(1.0, "http_429", 1.0),
        _failed(3.0, "http_429", 1.0),
        _failed(4.0, "http_429"),
        _failed(5.0, "timeout"),
    ]
    found = figures_of(STAGE, [row[0] for row in rows], [row[1] for row in rows], Limits(ttft_s=1.0))
    assert (found.num_refused, found.num_refused_without_retry_after) == (2, 1)
    assert found.errors == {"timeout": 1}
    assert found.refused_after_s is not None
    assert found.ttft_s is None
    assert found.num_requests == 4
