"""The forecast of a first token: learned from those before, right again soon after a stall."""

import pytest

from router.front.forecast import FirstTokenForecast, Wait


def _served(forecast: FirstTokenForecast, num_waits: int, seconds_each: float, now: float = 0.0) -> None:
    """`num_waits` come at once and are served one after the other."""
    waits = [forecast.join(now) for _ in range(num_waits)]
    for number, wait in enumerate(waits, 1):
        forecast.answered(wait, now + number * seconds_each)


def test_nothing_is_expected_before_anything_was_learned() -> None:
    """Whoever comes first is let in, however many wait."""
    forecast = FirstTokenForecast()
    for _ in range(100):
        forecast.join(0.0)
    assert forecast.expected_s() == 0.0


def test_a_wait_is_those_ahead_times_what_each_costs() -> None:
    """By Little's law, its own turn included, and nothing when nobody is ahead."""
    forecast = FirstTokenForecast()
    _served(forecast, 50, 0.25)
    assert forecast.expected_s() == 0.0
    for _ in range(8):
        forecast.join(100.0)
    assert forecast.expected_s() == pytest.approx((8 + 1) * 0.25)


def test_requests_that_are_served_together_cost_less_each() -> None:
    """Ten that come and are answered together cost a tenth of the time each, in the mean of the logarithms."""
    forecast = FirstTokenForecast()
    for round_number in range(30):
        waits = [forecast.join(float(round_number)) for _ in range(10)]
        for wait in waits:
            forecast.answered(wait, round_number + 0.5)
    for _ in range(10):
        forecast.join(100.0)
    assert 0.5 <= forecast.expected_s() <= 1.5


def test_a_wait_that_was_given_up_teaches_nothing_and_counts_no_more() -> None:
    """It leaves once, whether or not its first token still comes."""
    forecast = FirstTokenForecast()
    _served(forecast, 5, 1.0)
    before = forecast.join(0.0), forecast.join(0.0)
    forecast.left(before[0])
    forecast.left(before[0])
    forecast.answered(before[0], 1e6)
    assert forecast.num_waiting == 1
    assert forecast.expected_s() == pytest.approx(2.0)


def test_the_forecast_is_right_soon_after_a_stall() -> None:
    """Three waits of a minute are outweighed by ten of the usual kind."""
    forecast = FirstTokenForecast()
    _served(forecast, 50, 0.1)
    for number in range(3):
        forecast.answered(forecast.join(100.0 * number), 100.0 * number + 60.0)
    _served(forecast, 10, 0.1, now=1000.0)
    forecast.join(2000.0)
    assert forecast.expected_s() < 1.0


def test_tokens_that_come_at_once_are_no_domain_error() -> None:
    """A wait of no time at all is a very short one."""
    forecast = FirstTokenForecast()
    forecast.answered(forecast.join(5.0), 5.0)
    assert isinstance(forecast.join(5.0), Wait)
    assert 0.0 < forecast.expected_s() < 1e-5
