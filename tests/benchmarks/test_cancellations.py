"""The benchmark of clients that leave: when they do, and what is told of a round, with no cluster."""

from dataclasses import replace

import pytest

from benchmarks.cancellations import Leaving, Round, moments_of, parse_arguments, troubles_of

GOOD = Round({Leaving.IN_TIME.value: 3}, 5, 4, 0.1, {"router": 60}, "")


def test_clients_leave_at_moments_that_a_seed_determines() -> None:
    """Most at a moment, the others with their first token; each round has its own."""
    arguments = parse_arguments(["--requests", "200", "--leave-within-s", "3"])
    moments = moments_of(arguments, 0)
    assert moments == moments_of(arguments, 0) != moments_of(arguments, 1)
    timed = [one for one in moments if one is not None]
    assert 100 < len(timed) < 180
    assert all(0 <= one <= 3 for one in timed)


def test_rounds_that_left_nothing_are_no_trouble() -> None:
    """Fewer descriptors than before are none either."""
    assert troubles_of([GOOD, replace(GOOD, descriptors={"router": 59})]) == []


@pytest.mark.parametrize(
    ("later", "told"),
    [
        (replace(GOOD, trouble="decode-0: num_running is 1"), "round 1: decode-0: num_running is 1"),
        (replace(GOOD, leavings={Leaving.FAILED.value: 2}), "2 requests failed"),
        (replace(GOOD, num_given_up=0), "no transfer that was cancelled"),
        (replace(GOOD, descriptors={"router": 61}), "router holds 61 descriptors"),
    ],
)
def test_each_trouble_is_told(later: Round, told: str) -> None:
    """By its sentence."""
    (sentence,) = troubles_of([GOOD, later])
    assert told in sentence
