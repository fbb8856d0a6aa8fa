"""The measured rate of a link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer.planner.link import MIN_SAMPLE_BYTES, LinkEstimate


def test_the_first_sample_counts_whole_and_later_ones_a_fifth() -> None:
    """A moving average that starts at what was measured first."""
    first = LinkEstimate().sample(10_000_000, 0.01)
    assert first.bytes_per_second == pytest.approx(1e9)
    second = first.sample(5_000_000, 0.01)
    assert second.bytes_per_second == pytest.approx(0.9e9)
    assert second.num_samples == 2


@pytest.mark.parametrize(("num_bytes", "seconds"), [(MIN_SAMPLE_BYTES - 1, 1.0), (10**7, 0.0), (10**7, -1.0)])
def test_what_says_nothing_about_bandwidth_is_left_out(num_bytes: int, seconds: float) -> None:
    """Small writes measure latency; a clock that stands still measures nothing."""
    assert LinkEstimate().sample(num_bytes, seconds) == LinkEstimate()


@given(st.lists(st.tuples(st.integers(MIN_SAMPLE_BYTES, 2**40), st.floats(1e-6, 1e3)), min_size=1))
def test_the_estimate_stays_within_what_was_measured(samples: list[tuple[int, float]]) -> None:
    """Never faster than the fastest sample nor slower than the slowest."""
    estimate = LinkEstimate()
    for sample in samples:
        estimate = estimate.sample(*sample)
    rates = [num_bytes / seconds for num_bytes, seconds in samples]
    assert min(rates) * 0.999 <= estimate.bytes_per_second <= max(rates) * 1.001
