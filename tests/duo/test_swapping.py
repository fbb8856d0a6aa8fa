"""Preempted requests whose KV waits in host memory. On the fake clock that costs nothing, so that it is always cheaper."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from decode_worker.config import DecodeConfig
from decode_worker.outlet import OutletBatch
from decode_worker.sequence import DecodeSequence
from protocol.phase import Phase
from protocol.request import GeneratedToken
from tests.duo.asking import NUM_TOKENS, VOCAB, sampled, seed_after
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.oracle import answer_in_one_piece, prompt_of
from tests.support.tiny_model import tiny_engine

pytestmark = pytest.mark.timeout(20)

LENGTHS = [9, 17, 10, 14, 13, 12]
BLOCK_BYTES = 4 * tiny_engine().layout.bytes_per_token
AMPLE = 1000 * BLOCK_BYTES
SMALL = 11 * BLOCK_BYTES


def _duo(swap_bytes: int, num_prefill: int = 1) -> Duo:
    """A decode pool far too small for the load."""
    config = DecodeConfig(max_step_tokens=48, max_sequences=8, swap_bytes=swap_bytes)
    engine = {"num_blocks": 28, "block_size": 4}
    return Duo(DuoOptions(num_prefill=num_prefill, decode_engine=engine, decode=config))


@pytest.mark.parametrize("swap_bytes", [0, SMALL, AMPLE])
@pytest.mark.parametrize("num_prefill", [0, 1])
def test_the_text_is_the_same(swap_bytes: int, num_prefill: int) -> None:
    """Computed again, kept, or some of each where the space is too small; nothing is left behind. Remote KV is asked for once
    only, and with room for all of it nothing is computed here.
    """
    duo = _duo(swap_bytes, num_prefill)
    answers = duo.generate_all([greedy(prompt_of(length, VOCAB), 30) for length in LENGTHS])
    assert answers == [answer_in_one_piece(tiny_engine(), prompt_of(length, VOCAB), 30) for length in LENGTHS]
    decode = duo.decodes[0]
    assert decode.num_preemptions > 0
    assert (decode.num_swaps == 0) == (swap_bytes == 0)
    assert (decode.num_swaps == decode.num_preemptions) == (swap_bytes == AMPLE)
    assert decode.admission.num_transfers == num_prefill * len(LENGTHS)
    if swap_bytes == AMPLE:
        assert decode.num_local_prefill_tokens == (0 if num_prefill else sum(LENGTHS))
        assert decode.swapping.num_swap_bytes > 0
    duo.check_idle()


@pytest.mark.parametrize("num_prefill", [0, 1])
def test_choices_are_swapped_one_by_one(num_prefill: int) -> None:
    """Answers that share the prompt's blocks lose and regain them alone."""
    duo = _duo(AMPLE, num_prefill)
    asked = [sampled(prompt_of(length, VOCAB), NUM_TOKENS, num_choices=3) for length in (30, 50, 41)]

    async def work() -> list[list[GeneratedToken]]:
        return await asyncio.gather(*map(duo.generate, asked))

    answers = duo.run(work)
    for one, tokens in zip(asked, answers, strict=True):
        for choice in range(3):
            alone = seed_after(one, choice)
            expected = answer_in_one_piece(tiny_engine(), one.prompt_token_ids, NUM_TOKENS, alone.sampling)
            assert [token.token_id for token in tokens if token.choice == choice] == expected
    assert duo.decodes[0].num_swaps > 0
    duo.check_idle()


def _swapped(duo: Duo, where: Callable[[DecodeSequence], bool] = lambda _: True) -> DecodeSequence:
    """Turns until a sequence has its KV in host memory."""
    while duo.turn():
        for one in duo.decodes[0].sequences.values():
            if one.swapped is not None and where(one):
                return one
    raise AssertionError("nothing was swapped")


def _begin(duo: Duo, deadline_s: float = 600.0) -> None:
    duo.decodes[0].outlets.subscribe("router", lambda _: None)
    for length in (30, 31, 32, 33):
        duo.decodes[0].generate(greedy(prompt_of(length, VOCAB), 40), "router", deadline_s)


def test_cancelled_while_swapped() -> None:
    """Its place in host memory is free at once, and nobody else is disturbed."""
    duo = _duo(AMPLE, num_prefill=0)
    _begin(duo)
    victim = _swapped(duo)
    held = duo.decodes[0].swapping.num_blocks_held
    duo.decodes[0].cancel(victim.request.request_id)
    duo.turn()
    assert victim.record.phase is Phase.CANCELLED
    assert victim.swapped is None
    assert duo.decodes[0].swapping.num_blocks_held < held
    duo.settle()
    duo.check_idle()


def test_past_its_deadline_while_swapped() -> None:
    """The same for requests that come to their deadline."""
    duo = _duo(AMPLE, num_prefill=0)
    _begin(duo, deadline_s=5.0)
    victim = _swapped(duo)
    duo.turn(10.0)
    assert victim.record.phase is Phase.FAILED
    duo.settle()
    duo.check_idle()


def test_a_prompt_goes_on_where_it_was() -> None:
    """Half read when it lost its blocks: the first half is not read, nor scored, again."""
    duo = Duo(
        DuoOptions(
            num_prefill=0,
            decode_engine={"num_blocks": 28, "block_size": 4},
            decode=DecodeConfig(max_step_tokens=8, max_sequences=8, swap_bytes=AMPLE),
        )
    )
    decode = duo.decodes[0]
    batches: list[OutletBatch] = []
    decode.outlets.subscribe("router", batches.append)
    lengths = (6, 7, 8, 60)
    asked = [replace(greedy(prompt_of(length, VOCAB), 30), num_prompt_logprobs=0) for length in lengths]
    for one in asked:
        decode.generate(one, "router", 600.0)
    young = _swapped(duo, lambda one: one.num_generated == 0)
    assert 0 < young.num_cached < 60
    duo.settle()
    assert decode.num_local_prefill_tokens == sum(lengths)
    scores = [prompt.scores for batch in batches for prompt in batch.prompts]
    assert sorted(len(one or ()) for one in scores) == [length - 1 for length in lengths]
    answers: dict[str, list[int]] = {one.request_id: [] for one in asked}
    for batch in batches:
        for token in batch.tokens:
            answers[token.request_id].append(token.token_id)
    for one in asked:
        assert answers[one.request_id] == answer_in_one_piece(tiny_engine(), one.prompt_token_ids, 30)
    duo.check_idle()
