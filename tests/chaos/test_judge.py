"""Rulings on requests: the right text and nothing else is right, and an error is excused by its own fault only."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.chaos.judge import Ruling, Trouble, judge
from tests.chaos.outcomes import Answer, Outcome
from tests.chaos.questions import MISTAKES, TIMEOUT_S, Ask, Door, Manner, Question
from tests.chaos.schedule import FaultKind

QUESTION = Question(0, (65, 66), "", {"max_tokens": 3, "n": 2})
ASK = Ask(0, QUESTION, Door.COMPLETIONS, Manner.STREAM)
RIGHT = Answer(("abc", "xyz"), ("length", "stop"), 6)
ROUTER_DIES = Trouble(FaultKind.KILL_ROUTER, 2.0, 5.0)


def _ended(ask: Ask = ASK, *, texts: tuple[str, ...] = RIGHT.texts, done: bool = True, after_s: float = 3.0) -> Outcome:
    outcome = Outcome(ask, started_at=1.0, ended_at=1.0 + after_s)
    outcome.texts = list(texts)
    if done:
        outcome.finishes, outcome.num_tokens, outcome.is_done = list(RIGHT.finishes), RIGHT.num_tokens, True
    return outcome


def test_the_right_answer_is_right() -> None:
    """Texts, reasons of the end and number of tokens are those of the fault-free run."""
    assert judge(_ended(), RIGHT, [ROUTER_DIES]).ruling is Ruling.RIGHT
    for wrong in (
        replace(RIGHT, texts=("abc", "xy")),
        replace(RIGHT, finishes=("length", "length")),
        replace(RIGHT, num_tokens=7),
    ):
        assert judge(_ended(), wrong, [ROUTER_DIES]).ruling is Ruling.WRONG


@pytest.mark.parametrize("texts", [("abd", ""), ("abcc", ""), ("aab", ""), ("", "x z")])
def test_nothing_excuses_a_wrong_beginning(texts: tuple[str, str]) -> None:
    """A gap or a duplicate before an error, or before the client left, is wrong."""
    outcome = _ended(texts=texts, done=False)
    outcome.refused("not_ready", "")
    assert judge(outcome, RIGHT, [ROUTER_DIES]).ruling is Ruling.WRONG
    outcome.has_left = True
    assert judge(outcome, RIGHT, [ROUTER_DIES]).ruling is Ruling.WRONG


def test_an_error_is_excused_by_a_fault_that_allows_it() -> None:
    """While it lasts, and no other."""
    outcome = _ended(texts=("ab", ""), done=False)
    outcome.broken = "ReadError"
    assert judge(outcome, RIGHT, [ROUTER_DIES]).ruling is Ruling.EXCUSED
    assert judge(outcome, RIGHT, []).ruling is Ruling.UNEXCUSED
    assert judge(outcome, RIGHT, [replace(ROUTER_DIES, since=4.5)]).ruling is Ruling.UNEXCUSED
    assert judge(outcome, RIGHT, [replace(ROUTER_DIES, kind=FaultKind.KILL_DECODE)]).ruling is Ruling.UNEXCUSED
    outcome.broken = ""
    outcome.refused("internal_error", "")
    assert judge(outcome, RIGHT, [ROUTER_DIES]).ruling is Ruling.UNEXCUSED


def test_what_never_ends_is_lost() -> None:
    """Also when it ends without a word, or long after its deadline; a router that stood still has longer."""
    assert judge(_ended(texts=("ab", ""), done=False), RIGHT, [ROUTER_DIES]).ruling is Ruling.LOST
    late = _ended(after_s=TIMEOUT_S + 6.0)
    assert judge(late, RIGHT, []).ruling is Ruling.LOST
    assert judge(late, RIGHT, [Trouble(FaultKind.FREEZE_ROUTER, 10.0, 20.0)]).ruling is Ruling.RIGHT


def test_a_hurried_client_may_be_told_so() -> None:
    """A patient one may not."""
    outcome = _ended(replace(ASK, manner=Manner.HURRY, timeout_s=0.1), texts=("a", ""), done=False, after_s=0.5)
    outcome.refused("deadline_exceeded", "", 504)
    assert judge(outcome, RIGHT, []).ruling is Ruling.LATE
    outcome.ask = ASK
    assert judge(outcome, RIGHT, []).ruling is Ruling.UNEXCUSED


def test_a_client_that_left_had_the_right_beginning() -> None:
    """It ended by itself."""
    outcome = _ended(replace(ASK, manner=Manner.LEAVE, leave_after=1), texts=("a", ""), done=False)
    outcome.has_left = True
    assert judge(outcome, RIGHT, []).ruling is Ruling.LEFT


def test_a_mistake_is_refused_with_its_status() -> None:
    """Anything else is not what was to happen."""
    ask = replace(ASK, manner=Manner.WRONG, mistake=MISTAKES[0])
    outcome = _ended(ask, texts=("", ""), done=False)
    outcome.refused("invalid_request", "", 400)
    assert judge(outcome, RIGHT, []).ruling is Ruling.REFUSED
    outcome.refused("internal_error", "", 500)
    assert judge(outcome, RIGHT, []).ruling is Ruling.UNEXCUSED
    assert judge(_ended(ask), RIGHT, []).ruling is Ruling.WRONG
