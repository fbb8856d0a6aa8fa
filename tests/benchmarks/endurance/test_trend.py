"""Whether a figure grows: the slope, and how far it is trusted."""

import random

import pytest

from benchmarks.endurance.trend import trend


def test_a_straight_line_is_found_exactly() -> None:
    """Without noise the slope is certain."""
    line = trend([0.0, 10.0, 20.0, 30.0], [5.0, 25.0, 45.0, 65.0])
    assert line.slope == pytest.approx(2.0)
    assert line.half_width == pytest.approx(0.0, abs=1e-9)
    assert line.first == pytest.approx(5.0)
    assert line.last == pytest.approx(65.0)
    assert line.grows_faster_than(1.9)
    assert not line.grows_faster_than(2.1)


def test_noise_around_a_level_is_no_growth() -> None:
    """Independent noise: zero lies within the error."""
    source = random.Random(1)
    line = trend([float(n) for n in range(400)], [source.gauss(1000.0, 50.0) for _ in range(400)])
    assert abs(line.slope) <= line.half_width
    assert not line.grows_faster_than(0.0)


def test_readings_that_resemble_those_before_are_trusted_less() -> None:
    """The same spread in runs of 40 has a wider error than when it is shuffled."""
    source = random.Random(2)
    runs = [level for _ in range(10) for level in [source.gauss(0.0, 1.0)] * 40]
    shuffled = source.sample(runs, len(runs))
    places = [float(n) for n in range(len(runs))]
    assert trend(places, runs).half_width > 2 * trend(places, shuffled).half_width


def test_growth_under_noise_is_told_from_it() -> None:
    """A slope well above the noise is found."""
    source = random.Random(3)
    line = trend([float(n) for n in range(200)], [3.0 * n + source.gauss(0.0, 20.0) for n in range(200)])
    assert line.slope == pytest.approx(3.0, abs=line.half_width + 0.05)
    assert line.grows_faster_than(2.5)


@pytest.mark.parametrize("places", [[], [1.0, 2.0], [1.0, 1.0, 1.0, 2.0]])
def test_too_few_places_have_no_trend(places: list[float]) -> None:
    """Two points are a line whatever they are."""
    with pytest.raises(ValueError, match="three different places"):
        trend(places, [0.0] * len(places))
