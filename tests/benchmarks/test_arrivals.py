"""Arrival schedules."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.load.arrivals import poisson_arrivals, stretched_to_rate


def test_equal_seeds_give_equal_times() -> None:
    """A schedule is determined by its arguments, and another seed gives another."""
    assert poisson_arrivals(2.0, 50, 7) == poisson_arrivals(2.0, 50, 7)
    assert poisson_arrivals(2.0, 50, 7) != poisson_arrivals(2.0, 50, 8)


def test_mean_gap_is_the_inverse_of_the_rate() -> None:
    """Many arrivals come at the rate that was asked for, and their gaps vary as an exponential's do."""
    times = poisson_arrivals(4.0, 20_000, 1)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert mean == pytest.approx(0.25, rel=0.03)
    assert deviation == pytest.approx(mean, rel=0.05)


@given(st.floats(0.01, 1e3), st.integers(1, 200), st.integers(0, 2**31))
def test_times_start_at_zero_and_never_go_back(rate: float, num_requests: int, seed: int) -> None:
    """Any schedule has as many times as were asked for, in order, from 0."""
    times = poisson_arrivals(rate, num_requests, seed)
    assert len(times) == num_requests
    assert times[0] == 0.0
    assert times == sorted(times)


def test_stretching_keeps_the_pattern() -> None:
    """A stretched schedule has the new mean gap and the old proportions."""
    assert stretched_to_rate([10.0, 11.0, 13.0], 0.5) == pytest.approx([0.0, 4 / 3, 4.0])


def test_times_at_once_stay_at_once() -> None:
    """Without a span there is nothing to stretch."""
    assert stretched_to_rate([3.0, 3.0], 1.0) == [0.0, 0.0]


@pytest.mark.parametrize(("rate", "num_requests"), [(0.0, 1), (-1.0, 1), (1.0, 0)])
def test_impossible_schedules_are_refused(rate: float, num_requests: int) -> None:
    """A rate or number that is not positive raises."""
    with pytest.raises(ValueError, match="positive"):
        poisson_arrivals(rate, num_requests, 0)
