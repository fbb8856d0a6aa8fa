"""The measured rate of a link."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from transfer.planner.link import FORGET_S, MIN_SAMPLE_BYTES, LinkEstimate, LinkMeter, WriteEnd

MEGABYTE = 10**6


def end(number: int, num_bytes: int = MEGABYTE, *, is_done: bool = True) -> WriteEnd:
    """The end of a write of a megabyte."""
    return WriteEnd(number, num_bytes, is_done)


def meter_of(*posts: tuple[int, float]) -> LinkMeter:
    """A link on which these writes, by number and time, were posted."""
    meter = LinkMeter()
    for number, now in posts:
        meter.posted(number, now, is_paced=False)
    return meter


def test_samples_count_for_as_long_as_they_took() -> None:
    """The first counts whole; a second of sending later little of it is left."""
    first = LinkEstimate().sample(10_000_000, 0.01)
    assert first.bytes_per_second == pytest.approx(1e9)
    second = first.sample(5_000_000, 0.01)
    assert second.bytes_per_second == pytest.approx(0.75e9, rel=0.01)
    assert second.num_samples == 2
    later = second.sample(10**9, 3 * FORGET_S)
    assert later.bytes_per_second == pytest.approx(1e9 / (3 * FORGET_S), rel=0.02)


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


def test_writes_that_share_a_link_are_measured_together() -> None:
    """Four at once take four times as long each: the link is as fast as with one at a time."""
    alone = meter_of((0, 0.0))
    alone.ended([end(0)], 0.01)
    assert alone.estimate.bytes_per_second == pytest.approx(100e6)
    together = meter_of(*((number, 0.0) for number in range(4)))
    together.ended([end(number) for number in range(4)], 0.04)
    assert together.estimate.bytes_per_second == pytest.approx(100e6)


def test_two_that_end_almost_together_do_not_make_a_link_fast() -> None:
    """The second seems to take no time at all, and counts for that long."""
    meter = meter_of((0, 0.0), (1, 0.0))
    meter.ended([end(0)], 0.02)
    meter.ended([end(1)], 0.02 + 1e-6)
    assert meter.estimate.bytes_per_second == pytest.approx(100e6, rel=0.01)


def test_idle_time_is_nobodys() -> None:
    """A link that fell idle is measured from the next post on."""
    meter = meter_of((0, 0.0))
    meter.ended([end(0)], 0.01)
    meter.posted(1, 5.0, is_paced=False)
    meter.ended([end(1)], 5.01)
    assert meter.estimate.bytes_per_second == pytest.approx(100e6)


def test_ends_that_are_small_add_up_to_a_sample() -> None:
    """As long as the link is busy nothing of it is lost; what a burst of little leaves over is."""
    half = MIN_SAMPLE_BYTES // 2
    meter = meter_of(*((number, 0.0) for number in range(3)))
    meter.ended([end(0, half)], 0.001)
    assert meter.estimate.num_samples == 0
    meter.ended([end(1, half)], 0.002)
    assert meter.estimate.bytes_per_second == pytest.approx(2 * half / 0.002)
    meter.ended([end(2, half)], 0.1)
    meter.posted(3, 1.0, is_paced=False)
    meter.ended([end(3, half)], 1.1)
    assert meter.estimate.num_samples == 1


def test_paced_writes_and_their_neighbours_are_no_samples() -> None:
    """What was in flight beside a paced write ends unmeasured, in whatever order; what begins after it is measured."""
    meter = meter_of((0, 0.0))
    meter.posted(1, 0.001, is_paced=True)
    meter.posted(2, 0.002, is_paced=False)
    meter.ended([end(0)], 0.01)
    meter.ended([end(1)], 0.02)
    meter.posted(3, 0.02, is_paced=False)
    meter.ended([end(2)], 0.03)
    assert meter.estimate == LinkEstimate()
    meter.ended([end(3)], 0.04)
    assert meter.estimate.bytes_per_second == pytest.approx(100e6)


def test_a_failed_write_spoils_what_was_beside_it() -> None:
    """How much of it crossed nobody knows."""
    meter = meter_of((0, 0.0), (1, 0.0))
    meter.ended([end(0, is_done=False)], 0.01)
    meter.ended([end(1)], 0.02)
    assert meter.estimate == LinkEstimate()


def test_ends_of_an_earlier_life_are_ignored() -> None:
    """A link that was forgotten and made anew knows nothing of the writes before."""
    meter = LinkMeter()
    meter.ended([end(7)], 1.0)
    assert meter.estimate == LinkEstimate()
