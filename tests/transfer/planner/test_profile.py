"""The step function of what is sold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from transfer.planner.profile import RateProfile

Hold = tuple[int, int, int]
holds = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20), st.integers(1, 9)), max_size=12)


def profile_of(chosen: list[Hold]) -> RateProfile:
    """The profile with these holds."""
    profile = RateProfile()
    for start, length, rate in chosen:
        profile = profile.with_hold(start, start + length, rate)
    return profile


def sold_at(chosen: list[Hold], time: float) -> int:
    """What the holds sum up to at an instant."""
    return sum(rate for start, length, rate in chosen if start <= time < start + length)


@given(holds, st.integers(0, 45), st.integers(1, 20))
def test_a_profile_is_the_sum_of_its_holds(chosen: list[Hold], start: int, length: int) -> None:
    """At every instant, at the peak of every interval, and at every change."""
    profile = profile_of(chosen)
    every = [sold_at(chosen, time) for time in range(45)]
    assert [profile.at(time) for time in range(45)] == every
    assert profile.peak(start, start + length) == max([0, *every[start : start + length]])
    changes = [time for time in range(1, 45) if every[time] != every[time - 1] and time > start]
    assert profile.next_change(start) == (changes[0] if changes else float("inf"))
    assert all(before != after for before, after in zip((0, *profile.rates), profile.rates, strict=False))


@given(holds, st.integers(0, 45))
def test_what_is_taken_out_leaves_nothing_even_when_the_past_is_gone(chosen: list[Hold], now: int) -> None:
    """Pruned or not, a profile without its holds is empty from now on."""
    profile = profile_of(chosen).pruned(now)
    assert [profile.at(time) for time in range(now, 45)] == [sold_at(chosen, time) for time in range(now, 45)]
    for start, length, rate in chosen:
        profile = profile.without_hold(max(start, now), start + length, rate)
    assert profile == RateProfile()
