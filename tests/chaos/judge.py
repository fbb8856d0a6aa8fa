"""What was right: every request's end against the fault-free answer, and against the errors that its faults excuse.

Pure. Nobody is excused from the right text: a stream that ended with an error must have begun like the right answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tests.chaos.outcomes import Answer, Outcome
from tests.chaos.questions import Manner
from tests.chaos.schedule import FaultKind

GRACE_S = 5.0
"""How long after its deadline a request may end on a busy machine."""
BROKEN = "broken connection"
TOO_LATE = frozenset({"deadline_exceeded", "overloaded"})
"""How a request in a hurry may end: late, or refused at once because it would be."""
_NO_ROUTER = frozenset({BROKEN, "not_ready"})
_NO_DECODE = frozenset({"not_ready", "worker_unavailable"})
EXCUSES: Mapping[FaultKind, frozenset[str]] = {
    FaultKind.KILL_ROUTER: _NO_ROUTER,
    FaultKind.FREEZE_ROUTER: _NO_ROUTER,
    FaultKind.KILL_DECODES: _NO_DECODE,
    FaultKind.CUT_LINK: _NO_DECODE,  # the only decode worker is at its other end
}
"""The errors that clients may see of a fault, by `docs/failure-modes.md`; of all others none."""


class Ruling(StrEnum):
    """What a request's end was."""

    RIGHT = "right"
    LEFT = "client left"
    REFUSED = "rightly refused"
    LATE = "deadline"
    EXCUSED = "excused error"
    UNEXCUSED = "unexcused error"
    WRONG = "wrong"
    LOST = "lost"

    @property
    def is_failure(self) -> bool:
        """Whether the run has failed by it."""
        return self in (Ruling.UNEXCUSED, Ruling.WRONG, Ruling.LOST)


@dataclass(frozen=True, slots=True)
class Trouble:
    """A fault and the time, by `time.monotonic`, in which its effects may be seen."""

    kind: FaultKind
    since: float
    until: float

    def overlaps(self, outcome: Outcome) -> bool:
        """Whether a request ran meanwhile."""
        return self.since <= outcome.ended_at and outcome.started_at <= self.until


@dataclass(frozen=True, slots=True)
class Judgement:
    """A ruling, and what there is to say about it."""

    outcome: Outcome
    ruling: Ruling
    reason: str = ""


def judge(outcome: Outcome, right: Answer, troubles: Sequence[Trouble]) -> Judgement:
    """The ruling on one request. `right` is the fault-free answer to its question."""
    seen = [trouble for trouble in troubles if trouble.overlaps(outcome)]
    if (difference := _difference(outcome, right)) and outcome.ask.manner is not Manner.WRONG:
        return Judgement(outcome, Ruling.WRONG, difference)
    if outcome.duration_s > _limit_s(outcome, seen) or outcome.broken == "silent":
        return Judgement(outcome, Ruling.LOST, f"ended {outcome.duration_s:.1f} s after it was asked: {_end(outcome)}")
    if outcome.has_left:
        return Judgement(outcome, Ruling.LEFT)
    if outcome.broken or outcome.error_code:
        return _judge_error(outcome, seen)
    if not outcome.is_done:
        return Judgement(outcome, Ruling.LOST, "ended without a word")
    if outcome.ask.manner is Manner.WRONG:
        return Judgement(outcome, Ruling.WRONG, "was to be refused and was answered")
    return Judgement(outcome, Ruling.RIGHT)


def _judge_error(outcome: Outcome, seen: Sequence[Trouble]) -> Judgement:
    ask, code = outcome.ask, BROKEN if outcome.broken else outcome.error_code
    if ask.mistake is not None and outcome.status == ask.mistake.status:
        return Judgement(outcome, Ruling.REFUSED)
    if ask.manner is Manner.HURRY and code in TOO_LATE:
        return Judgement(outcome, Ruling.LATE)
    if any(code in EXCUSES.get(trouble.kind, ()) for trouble in seen):
        return Judgement(outcome, Ruling.EXCUSED, code)
    during = ", ".join(trouble.kind for trouble in seen) or "no fault"
    return Judgement(outcome, Ruling.UNEXCUSED, f"{_end(outcome)}, during: {during}")


def _difference(outcome: Outcome, right: Answer) -> str:
    """How what came differs from the right answer, or from its beginning while it is not whole; empty when it does not."""
    if outcome.is_done:
        got = outcome.answer
        return "" if got == right else f"got {got}, {right} is right"
    for text, whole in zip(outcome.texts, right.texts, strict=True):
        if not whole.startswith(text):
            return f"began with {text!r}, {whole!r} is right"
    return ""


def _limit_s(outcome: Outcome, seen: Sequence[Trouble]) -> float:
    """A router that stands still cannot end anything: its time does not count."""
    stopped_s = sum(trouble.until - trouble.since for trouble in seen if trouble.kind.is_to_router)
    return outcome.ask.timeout_s + GRACE_S + stopped_s


def _end(outcome: Outcome) -> str:
    if outcome.broken:
        return f"connection: {outcome.broken}"
    if outcome.error_code:
        return f"{outcome.status} {outcome.error_code}: {outcome.error_message}"
    return "done" if outcome.is_done else "nothing"
