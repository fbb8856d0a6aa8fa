"""The soak: which prompts it asks, and what it makes of readings, with no cluster."""

import pytest

from benchmarks.endurance.processes import Reading, Watch
from benchmarks.soak import NUM_REPEATED, Course, growth, parse_arguments, prompt_key


def _watch(name: str, readings: list[Reading]) -> Watch:
    return Watch({}, [float(10 * n) for n in range(len(readings))], {name: readings})


def test_every_second_pair_asks_what_was_asked_before() -> None:
    """A few prompts come again and again, each with its length; the others come once."""
    keys = [prompt_key(number, 7) for number in range(400)]
    again = [key for key, _, is_repeated in keys if is_repeated]
    once = [key for key, _, is_repeated in keys if not is_repeated]
    assert len(set(again)) == NUM_REPEATED
    assert len(set(once)) == len(once) == 200
    assert len({(key, length) for key, length, _ in keys}) == len({key for key, _, _ in keys})


def test_a_text_that_changes_is_told() -> None:
    """By its prompt's key."""
    course = Course()
    for text in ("a", "a", "b"):
        course.compare("again/0/1", text)
    assert course.different == ["again/0/1"]
    assert course.num_compared == 3


def test_growth_after_the_warm_up_is_told() -> None:
    """Whatever grew before it is not."""
    early = [Reading(1000 * n, 5, 5) for n in range(30)]
    late = [Reading(30_000, 5, 5)] * 31
    assert growth(_watch("decode-0", early + late), 600, 10.0)[1] == []
    figures, growing = growth(
        _watch("decode-0", early + [Reading(30_000 + 500 * n, 5, 5) for n in range(31)]), 600, 10.0
    )
    assert growing == ["decode-0 grows by 50 +- 0 bytes a request"]
    assert figures["decode-0"]["resident_bytes"]["slope_bytes_per_request"] == pytest.approx(50.0)


def test_descriptors_and_threads_that_grow_are_told_too() -> None:
    """Their most in the second half against that in the first."""
    rows = [Reading(1, 5, 5)] * 50 + [Reading(1, 6, 5)]
    assert "more descriptors" in growth(_watch("router", rows), 500, 10.0)[1][0]


def test_what_ray_does_is_not_judged() -> None:
    """Its processes are told, though."""
    figures, growing = growth(_watch("ray", [Reading(1000 * n, n, n) for n in range(60)]), 600, 10.0)
    assert growing == []
    assert "ray" in figures


def test_too_short_a_soak_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A trend needs readings."""
    with pytest.raises(SystemExit):
        parse_arguments(["--requests", "10"])
    assert "at least 40 requests" in capsys.readouterr().err
