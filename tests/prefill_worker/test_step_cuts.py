"""Which steps a worker cuts, and what it takes its own speed from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.batch import SequenceSlice, StepBatch
from prefill_worker.sequence import PrefillSequence, Submission
from prefill_worker.step_cuts import StepCuts
from protocol.ids import WorkerId
from protocol.layout import KvDtype, KvLayout
from protocol.pace import Pace, TransferPlan
from protocol.request import GenerateRequest, SamplingParams, StopRule
from protocol.ticket import Ticket
from protocol.wire_rule import Importance, WireCodec, WireRule

LAYOUT = KvLayout("model", 30, 3, 64, KvDtype.FLOAT16, 16)
BYTES = LAYOUT.elements_per_token * 2
NUM_TOKENS = 512
FULL = 256


def _sequence(allowed_tokens_per_s: float, *, is_planned: bool = True, rule: WireRule | None = None) -> PrefillSequence:
    """A prompt whose KV may cross at so many tokens of 16 bits a second, and is predicted to be read at 200."""
    request = GenerateRequest(
        "0" * 32, tuple(range(NUM_TOKENS)), StopRule(8, frozenset()), SamplingParams(temperature=0.0)
    )
    worker = WorkerId("w", "1")
    ticket = Ticket(
        request.request_id, worker, worker, 1, (0,), 1 << 21, 0, NUM_TOKENS, 32, KvDtype.FLOAT16, 10.0, tail_tokens=16
    )
    if rule is not None:
        ticket = replace(ticket, rule=rule)
    rate = allowed_tokens_per_s * BYTES
    plan = TransferPlan(Pace(rate, rate, is_shared=False), 200.0 * BYTES) if is_planned else None
    return Submission(request, ticket, 60.0, plan).sequence(1, 0.0)


def _step(num_tokens: int, start: int = 0) -> StepBatch:
    """A step of one prompt, from a token on."""
    return StepBatch((SequenceSlice("r", tuple(range(num_tokens)), start, (), ()),))


def test_a_prompt_without_a_plan_is_not_cut() -> None:
    """Whatever was measured."""
    cuts = StepCuts(LAYOUT, FULL)
    cuts.learn(_step(FULL), 1.0)
    assert cuts.work_of(_sequence(100.0, is_planned=False)).max_step_tokens is None


def test_the_first_prompt_is_cut_by_its_plan() -> None:
    """Nothing was measured yet: a link half as fast as the prefill is predicted to be begins with a small step."""
    assert StepCuts(LAYOUT, FULL).work_of(_sequence(100.0)).max_step_tokens == 64


def test_what_was_measured_counts_more_than_the_plan() -> None:
    """The prefill turns out to be ten times slower: the link keeps up, and the first step is a full one."""
    cuts = StepCuts(LAYOUT, FULL)
    cuts.learn(_step(FULL), FULL / 20.0)
    assert cuts.work_of(_sequence(100.0)).max_step_tokens == 256


def test_small_and_deep_steps_teach_nothing() -> None:
    """They are slower for their tokens: prompts would be cut smaller and smaller, or as the last long one ended."""
    cuts = StepCuts(LAYOUT, FULL)
    cuts.learn(_step(FULL), FULL / 200.0)
    for _ in range(50):
        cuts.learn(_step(64), 64 / 20.0)
        cuts.learn(_step(FULL, 2 * FULL), FULL / 20.0)
        cuts.learn(_step(FULL), 0.0)
    assert cuts.work_of(_sequence(100.0)).max_step_tokens == 64


@pytest.mark.parametrize(("budget", "wanted"), [(0.9, 64), (0.3, 256)])
def test_fewer_bytes_make_headroom(budget: float, wanted: int) -> None:
    """KV in fewer bits is produced more slowly, in bytes."""
    cuts = StepCuts(LAYOUT, FULL)
    cuts.learn(_step(FULL), FULL / 200.0)
    rule = WireRule(codec=WireCodec.CHANNEL, budget=budget)
    assert cuts.work_of(_sequence(100.0, rule=rule)).max_step_tokens == wanted


@pytest.mark.parametrize(("importance", "wanted"), [(Importance.POSITIONAL, 384), (Importance.WINDOW, 64)])
def test_what_was_found_is_there_to_be_sent(importance: Importance, wanted: int) -> None:
    """A link that has the cached part at once can wait for all the rest; where it is written by its importance, it cannot."""
    sequence = _sequence(100.0 / 3.0, rule=WireRule(WireCodec.CHANNEL, 1.0, importance))
    sequence.begin_at(FULL // 2)
    assert StepCuts(LAYOUT, FULL).work_of(sequence).max_step_tokens == wanted
