"""Prompt log-probabilities, `min_tokens` and penalties: the same whoever reads the prompt, and whoever goes on."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from decode_worker.config import DecodeConfig
from decode_worker.outlet import OutletBatch
from prefill_worker.config import PrefillConfig
from protocol.phase import Phase
from protocol.request import GenerateRequest, PromptLogprobs, SamplingParams, StopRule
from tests.duo.asking import (
    LENGTH,
    NUM_TOKENS,
    PROMPT,
    VOCAB,
    answers,
    answers_of,
    prompt_scores,
    request,
    sampled,
    tokens_and,
    when,
)
from tests.support.duo import Duo, DuoOptions
from tests.support.oracle import prompt_of

pytestmark = pytest.mark.timeout(60)

LENGTHS = [1, 2, 31, 32, 33, 34, 64, 65, 97, 100]
PENALTIES = SamplingParams(temperature=0.8, seed=7, presence_penalty=0.8, frequency_penalty=0.7, repetition_penalty=1.3)


def scored(length: int, num_choices: int = 1, num_tokens: int = 4) -> GenerateRequest:
    """A request that wants its prompt scored."""
    return replace(sampled(prompt_of(length, VOCAB), num_tokens, num_choices), num_prompt_logprobs=2)


def check_close(found: PromptLogprobs, expected: PromptLogprobs) -> None:
    """Within 1e-5, and the same tokens are the most likely ones."""
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-5)
        assert [token_id for token_id, _ in one.top] == [token_id for token_id, _ in other.top]
        assert [value for _, value in one.top] == pytest.approx([value for _, value in other.top], abs=1e-5)


def scores_of(duo: Duo, lengths: list[int], num_choices: int = 1) -> list[PromptLogprobs]:
    """Scores of prompts that all come at once."""

    async def work() -> list[PromptLogprobs]:
        asked = [scored(length, num_choices=num_choices) for length in lengths]
        return await asyncio.gather(*(prompt_scores(duo, one) for one in asked))

    return duo.run(work)


@pytest.fixture(scope="module")
def whole() -> dict[int, PromptLogprobs]:
    """Scores of prompts that are read in one piece each, by their length."""
    duo = Duo(DuoOptions(prefill=PrefillConfig(max_step_tokens=500), num_slots=32))
    lengths = sorted({*LENGTHS, 6, 7, 8, 60})
    return dict(zip(lengths, (scores_of(duo, [length])[0] for length in lengths), strict=True))


@pytest.mark.parametrize("num_prefill", [0, 1])
@pytest.mark.parametrize("num_choices", [1, 3])
def test_scores_do_not_depend_on_who_reads(
    num_prefill: int, num_choices: int, whole: dict[int, PromptLogprobs]
) -> None:
    """In chunks on P or on D: all prompt tokens but the first, whatever the borders of the chunks are."""
    duo = Duo(DuoOptions(num_prefill=num_prefill, decode_engine={"num_blocks": 256}))
    for length, scores in zip(LENGTHS, scores_of(duo, LENGTHS, num_choices), strict=True):
        assert len(scores) == length - 1
        check_close(scores, whole[length])
    duo.settle(1.0)
    duo.check_idle()


def test_scores_after_preemption(whole: dict[int, PromptLogprobs]) -> None:
    """A prompt that loses its blocks half read is scored from its beginning, one that was read is not scored again."""
    duo = Duo(
        DuoOptions(
            num_prefill=0,
            decode_engine={"num_blocks": 28, "block_size": 4},
            decode=DecodeConfig(max_step_tokens=8, max_sequences=8),
        )
    )
    decode = duo.decodes[0]
    batches: list[OutletBatch] = []
    decode.outlets.subscribe("router", batches.append)
    asked = [scored(length, num_tokens=30) for length in (6, 7, 8, 60)]
    for one in asked:
        decode.generate(one, "router", 600.0)
    was_half_read = False
    while duo.turn():
        young = decode.sequences.get(asked[-1].request_id)
        was_half_read |= young is not None and young.record.phase is Phase.PREEMPTED and young.num_generated == 0
    assert was_half_read
    for one in asked:
        (scores,) = [
            prompt.scores for batch in batches for prompt in batch.prompts if prompt.request_id == one.request_id
        ]
        assert scores is not None
        check_close(scores, whole[one.num_prompt_tokens])
        first = next(batch for batch in batches if any(token.request_id == one.request_id for token in batch.tokens))
        assert [prompt.request_id for prompt in first.prompts].count(one.request_id) == 1
    duo.check_idle()


def test_a_prompt_is_scored_by_one_worker_only(whole: dict[int, PromptLogprobs]) -> None:
    """KV that does not arrive is computed again on D, but what P has scored is not."""
    duo = Duo()
    duo.run(lambda: duo.fleet.look())
    duo.fabric.faults.fail_write(num=1000)
    check_close(scores_of(duo, [LENGTH])[0], whole[LENGTH])
    assert duo.decodes[0].num_local_prefill_tokens == LENGTH + 1


@pytest.mark.parametrize("num_prefill", [0, 1])
def test_no_stop_token_before_min_tokens(num_prefill: int, expected: list[int]) -> None:
    """Tokens that would end the answer are not drawn until it is long enough; then they end it."""
    duo = Duo(DuoOptions(num_prefill=num_prefill))
    stops = frozenset(range(VOCAB)) - {5, 6}
    asked = replace(request(), stop=StopRule(NUM_TOKENS, stops, min_tokens=4), num_choices=2)
    for answer in duo.run(lambda: answers_of(duo, asked)):
        assert set(answer[:4]) <= {5, 6}
        assert len(answer) > 4
        assert all(token in {5, 6} for token in answer[4:-1])
    exact = replace(request(), stop=StopRule(NUM_TOKENS, frozenset({expected[0]}), min_tokens=1))
    assert duo.run(lambda: answers_of(duo, exact))[0][0] != expected[0]
    duo.settle(1.0)
    duo.check_idle()


@pytest.mark.parametrize("num_choices", [1, 3])
def test_penalties_do_not_depend_on_who_goes_on(num_choices: int) -> None:
    """On D alone, over P and D, with KV that fails, and on a second D after the first died: the same text."""
    asked = sampled(PROMPT, 20, num_choices, PENALTIES)

    def text(duo: Duo, kill_at: int | None = None) -> list[list[int]]:
        act = when(-1 if kill_at is None else kill_at, lambda: kill_busy(duo))
        return answers(duo.run(lambda: tokens_and(duo, act, asked)), num_choices)

    alone = text(Duo(DuoOptions(num_prefill=0)))
    assert text(Duo()) == alone
    failing = Duo()
    failing.run(lambda: failing.fleet.look())
    failing.fabric.faults.fail_write(num=1000)
    assert text(failing) == alone
    for kill_at in (2, 17):
        assert text(Duo(DuoOptions(num_decode=2)), kill_at) == alone
    free = replace(PENALTIES, presence_penalty=0.0, frequency_penalty=0.0, repetition_penalty=1.0)
    duo = Duo()
    assert duo.run(lambda: answers_of(duo, sampled(PROMPT, 20, num_choices, free))) != alone


def kill_busy(duo: Duo) -> None:
    """Kills the decode worker that is at work."""
    duo.kill(next(name for name, one in duo.fleet.decodes.items() if one.num_active))
