"""The order in which sequences are looked at for blocks."""

from __future__ import annotations

import pytest

from decode_worker.line import Line
from scheduling.policies.choose import SERVING_POLICIES, make_policy
from tests.decode_worker.sequences import sequence


def _line(policy: str, *names: tuple[str, int, int]) -> Line:
    line = Line(make_policy(policy))
    for name, num_prompt, arrival in names:
        line.put(sequence(name, num_prompt, arrival))
    return line


@pytest.mark.parametrize("policy", SERVING_POLICIES)
def test_what_lost_its_kv_comes_first(policy: str) -> None:
    """Whatever the policy, and by arrival among themselves."""
    line = _line(policy, ("short", 1, 1))
    line.put(sequence("late", 90, 9, num_generated=3))
    line.put(sequence("early", 99, 8, num_generated=1))
    assert list(line.order([], 10.0)) == ["early", "late", "short"]
    assert len(line) == 3


def test_a_landing_counts_as_what_is_done_here() -> None:
    """Its prompt is read elsewhere: `spf` has it first and landings by arrival, `srpt` by what is generated alone."""
    for policy, expected in [("spf", ["far", "near", "tiny"]), ("srpt", ["near", "tiny", "far"])]:
        line = Line(make_policy(policy))
        line.put(sequence("tiny", 2, 1))
        far, near = sequence("far", 90, 2, is_landing=True), sequence("near", 80, 3, is_landing=True)
        far.num_predicted_output = 40
        line.put(far)
        line.put(near)
        assert list(line.order([], 10.0)) == expected


def test_what_changes_finds_its_place_again() -> None:
    """A prefix was found: less is to be read."""
    line = _line("spf", ("a", 20, 1), ("b", 30, 2))
    assert list(line.order([], 5.0)) == ["a", "b"]
    shorter = sequence("b", 30, 2)
    shorter.num_cached = 16
    line.put(shorter)
    assert list(line.order([], 5.0)) == ["b", "a"]
    assert len(line) == 2


def test_taking_out_is_exact() -> None:
    """Whoever goes is gone, from both kinds; who does not wait changes nothing."""
    line = _line("fcfs", ("a", 20, 1), ("b", 30, 2))
    line.put(sequence("c", 5, 3, num_generated=1))
    for name in ("a", "c", "nobody"):
        line.take_out(name)
    assert list(line.order([], 5.0)) == ["b"]
    assert "c" not in line


def test_all_answers_of_a_prompt_are_its_work() -> None:
    """Three answers to a prompt are more to generate than one to another of its length."""
    many = sequence("many", 10, 1)
    many.choices = dict.fromkeys(range(3), many.request.sampling)
    line = Line(make_policy("srpt"))
    line.put(many)
    line.put(sequence("one", 10, 2))
    assert list(line.order([], 5.0)) == ["one", "many"]
