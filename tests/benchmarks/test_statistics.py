"""Percentiles, gaps and goodput."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.statistics import Limits, RequestRecord, is_good, percentile, spread, summary


def test_percentiles_lie_between_neighbours() -> None:
    """Shares between two values are interpolated; 0 and 1 are the ends."""
    values = [4.0, 1.0, 3.0, 2.0]
    assert [percentile(values, share) for share in (0, 0.5, 0.9, 1)] == pytest.approx([1.0, 2.5, 3.7, 4.0])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=50))
def test_the_half_is_the_median(values: list[float]) -> None:
    """p50 is the median, for any values."""
    assert percentile(values, 0.5) == pytest.approx(statistics.median(values))


def test_nothing_has_no_percentile() -> None:
    """No values: an error from `percentile`, None from `spread`."""
    with pytest.raises(ValueError, match="values"):
        percentile([], 0.5)
    assert spread([]) is None


def test_tokens_that_share_an_event_are_gaps_of_zero() -> None:
    """Three events with five tokens have two real gaps and two of 0."""
    record = RequestRecord((1.0, 1.5, 2.5), 2.5, 5)
    assert sorted(record.gaps_s) == [0.0, 0.0, 0.5, 1.0]
    assert record.second_token_s == 1.5
    assert RequestRecord((1.0,), 1.0, 4).second_token_s == 1.0
    assert RequestRecord((1.0,), 1.0, 1).second_token_s is None


@pytest.mark.parametrize(
    ("record", "limits", "expected"),
    [
        (RequestRecord((1.0, 1.2), 1.2, 2), Limits(1.0, 0.2 + 1e-9), True),
        (RequestRecord((1.1, 1.2), 1.2, 2), Limits(1.0, None), False),
        (RequestRecord((1.0, 1.5), 1.5, 2), Limits(None, 0.4), False),
        (RequestRecord((1.0, 1.5), 1.5, 2, "stream_cut"), Limits(), False),
        (RequestRecord((), 1.5, 0), Limits(), False),
        (RequestRecord((9.0, 99.0), 99.0, 2), Limits(), True),
    ],
)
def test_goodput_counts_requests_that_kept_every_limit(record: RequestRecord, limits: Limits, expected: bool) -> None:
    """A request is good when it ended well and kept both limits."""
    assert is_good(record, limits) is expected


def test_summary_counts_failures_by_kind_and_leaves_them_out_of_latencies() -> None:
    """Failed requests appear under errors, and in no distribution."""
    records = [
        RequestRecord((1.0, 2.0), 2.0, 2),
        RequestRecord((), 5.0, 0, "http_429"),
        RequestRecord((), 6.0, 0, "http_429"),
    ]
    found = summary(records, 4.0, Limits(2.0, None))
    assert found["errors"] == {"http_429": 2}
    assert found["ttft_s"] == {"num": 1, "mean": 1.0, "p50": 1.0, "p90": 1.0, "p99": 1.0, "max": 1.0}
    assert found["end_to_end_s"]["num"] == 1
    assert found["output_tokens_per_s"] == 0.5
    assert found["goodput"]["good_requests"] == 1
