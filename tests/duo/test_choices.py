"""Several answers to one prompt: each as if it had been asked for alone, over one prefill, one transfer and shared blocks."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import cache

import pytest

from decode_worker.config import DecodeConfig
from decode_worker.forking import num_blocks_to_start, release_all, take_tables
from engine.block_pool import BlockPool
from engine.engine import Engine
from protocol.errors import BadRequest
from protocol.phase import Phase
from protocol.request import FinishReason, GeneratedToken, SamplingParams, StopRule
from tests.duo.asking import (
    LENGTH,
    NUM_TOKENS,
    PROMPT,
    VOCAB,
    answers,
    answers_of,
    sampled,
    seed_after,
    tokens_and,
    when,
)
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.oracle import answer_in_one_piece, prompt_of
from tests.support.tiny_model import tiny_engine

pytestmark = pytest.mark.timeout(60)

BLOCK = 16
LENGTHS = [1, 5, 15, 16, 17, 31, 32, 33, 49, 65]
SMALL = {"num_blocks": 28, "block_size": 4}
"""A decode pool that a few requests with several choices exhaust."""


@cache
def text_of(length: int, choice: int, num_tokens: int = NUM_TOKENS) -> tuple[int, ...]:
    """What one engine makes of a choice in one piece."""
    prompt = prompt_of(length, VOCAB)
    return tuple(answer_in_one_piece(_oracle(), prompt, num_tokens, sampled(prompt).sampling_of(choice)))


@cache
def _oracle() -> Engine:
    return tiny_engine()


def expected_of(length: int, num_choices: int = 3, num_tokens: int = NUM_TOKENS) -> list[list[int]]:
    """The texts of all choices."""
    return [list(text_of(length, choice, num_tokens)) for choice in range(num_choices)]


async def all_answers(duo: Duo, lengths: list[int], num_choices: int = 3) -> list[list[list[int]]]:
    """Answers to requests that all come at once, each with several choices."""
    asked = [sampled(prompt_of(length, VOCAB), num_choices=num_choices) for length in lengths]
    return await asyncio.gather(*(answers_of(duo, one) for one in asked))


@pytest.mark.parametrize("num_prefill", [0, 1])
@pytest.mark.parametrize("decode_block", [16, 5])
def test_each_choice_is_what_one_engine_makes_of_its_seed(num_prefill: int, decode_block: int) -> None:
    """Over P and D or on D alone, around every block border, one at a time and all at once."""
    engine = {"block_size": decode_block, "num_blocks": 256}
    duo = Duo(DuoOptions(num_prefill=num_prefill, decode_engine=engine))
    expected = [expected_of(length) for length in LENGTHS]

    async def one_by_one() -> list[list[list[int]]]:
        return [(await all_answers(duo, [length]))[0] for length in LENGTHS]

    assert duo.run(one_by_one) == expected
    assert duo.run(lambda: all_answers(duo, LENGTHS)) == expected
    duo.settle(1.0)
    duo.check_idle()


@pytest.mark.parametrize("num_prefill", [0, 1])
def test_three_choices_are_three_requests(num_prefill: int) -> None:
    """One request with seed s gives what three with seeds s, s + 1 and s + 2 do."""
    duo = Duo(DuoOptions(num_prefill=num_prefill))
    asked = sampled(PROMPT, num_choices=3)

    async def work() -> tuple[list[list[int]], list[list[int]]]:
        alone = [(await answers_of(duo, seed_after(asked, choice)))[0] for choice in range(3)]
        return await answers_of(duo, asked), alone

    together, alone = duo.run(work)
    assert together == alone


@pytest.mark.parametrize("num_prefill", [0, 1])
def test_under_forced_preemption(num_prefill: int) -> None:
    """Choices lose their blocks one by one, before and after the fork, are computed again alone, and end the same."""
    lengths = [60, 47, 40, 33, 32, 17, 16]
    duo = Duo(
        DuoOptions(
            num_prefill=num_prefill,
            decode_engine=SMALL,
            decode=DecodeConfig(max_step_tokens=48, max_sequences=9),
        )
    )
    assert duo.run(lambda: all_answers(duo, lengths)) == [expected_of(length) for length in lengths]
    assert duo.decodes[0].num_preemptions > 0
    duo.settle(1.0)
    duo.check_idle()


def test_one_prefill_one_transfer_shared_blocks() -> None:
    """P computes the prompt once and ships it once; on D all choices, and the prefix cache, hold its full blocks together,
    and choices nothing else."""
    duo = Duo()
    decode = duo.decodes[0]

    def look() -> None:
        tables = [one.held_table().block_ids for one in decode.roster.in_phase(Phase.DECODING)]
        assert len(tables) == 3
        num_shared = LENGTH // BLOCK
        assert len({tuple(table[:num_shared]) for table in tables}) == 1
        assert [decode.pool.num_holders(block) for block in tables[0][:num_shared]] == [3 + 1] * num_shared
        tails = [block for table in tables for block in table[num_shared:]]
        assert [decode.pool.num_holders(block) for block in tails] == [1] * len(tails)
        seen.append(len(tables))

    seen: list[int] = []
    tokens = duo.run(lambda: tokens_and(duo, when(3 + 3 * 2, look), sampled(PROMPT, num_choices=3)))
    assert answers(tokens, 3) == expected_of(LENGTH)
    assert seen == [3]
    prefill = duo.prefills[0]
    assert (prefill.num_prefilled_tokens, prefill.num_transfers, prefill.failed_transfers.num_all) == (LENGTH, 1, 0)
    assert (decode.admission.num_transfers, decode.num_local_prefill_tokens) == (1, 0)
    duo.check_idle()


def test_choices_end_by_themselves() -> None:
    """A stop token ends the choice that drew it, at its first token or later; the others go on to their own end."""
    duo = Duo()
    whole = expected_of(LENGTH, num_choices=6)
    for stop in {answer[0] for answer in whole} | {whole[0][4]}:
        cut = [answer[: answer.index(stop) + 1] if stop in answer else answer for answer in whole]
        asked = replace(sampled(PROMPT, num_choices=6), stop=StopRule(NUM_TOKENS, frozenset({stop})))
        tokens = duo.run(lambda one=asked: duo.generate(one))  # type: ignore[misc]
        assert answers(tokens, 6) == cut
        ends = {token.choice: token.finish for token in tokens if token.finish}
        reasons = [FinishReason.STOP if stop in answer else FinishReason.LENGTH for answer in whole]
        assert [ends[choice] for choice in range(6)] == reasons
        duo.settle(1.0)
        duo.check_idle()


def test_all_choices_may_end_with_their_first_tokens() -> None:
    """Nothing stays on D, which had been reserved, nor on P."""
    duo = Duo()
    first = answer_in_one_piece(tiny_engine(), PROMPT, 1)[0]
    asked = replace(greedy(PROMPT), num_choices=3, stop=StopRule(NUM_TOKENS, frozenset({first})))
    assert answers(duo.run(lambda: duo.generate(asked)), 3) == [[first]] * 3
    duo.settle(1.0)
    duo.check_idle()
    assert duo.decodes[0].num_steps == 0


def test_one_token_each_never_touches_d() -> None:
    """`max_tokens=1` needs no reservation, however many choices there are."""
    duo = Duo()
    asked = sampled(PROMPT, num_tokens=1, num_choices=3)
    assert duo.run(lambda: answers_of(duo, asked)) == expected_of(LENGTH, num_tokens=1)
    assert (duo.decodes[0].num_steps, duo.decodes[0]._num_arrived) == (0, 0)
    duo.check_idle()


def test_seeds_tell_choices_apart() -> None:
    """Choices of one request differ from each other, and from those of another seed."""
    duo = Duo()

    async def work() -> list[list[int]]:
        other = SamplingParams(temperature=0.9, top_k=20, top_p=0.95, seed=99)
        return [
            *await answers_of(duo, sampled(PROMPT, num_choices=3)),
            *await answers_of(duo, sampled(PROMPT, num_choices=3, sampling=other)),
        ]

    assert len(set(map(tuple, duo.run(work)))) == 6


@pytest.mark.parametrize("num_prefill", [0, 1])
def test_more_choices_than_fit_are_the_clients_error(num_prefill: int) -> None:
    """More than D generates at a time, or than it has blocks to start: refused with the parameter, and nothing is held."""
    decode = DecodeConfig(max_step_tokens=64, max_sequences=16)
    duo = Duo(DuoOptions(num_prefill=num_prefill, decode=decode, decode_engine={"num_blocks": 14}))

    async def work() -> list[BaseException | list[GeneratedToken]]:
        # Six full blocks and one for each choice: 8 choices need just all 14 blocks.
        asked = [sampled(PROMPT, num_choices=num_choices) for num_choices in (17, 9, 8)]
        return await asyncio.gather(*map(duo.generate, asked), return_exceptions=True)

    *refused, served = duo.run(work)
    for one in refused:
        assert isinstance(one, BadRequest)
        assert one.param == "n"
    assert not isinstance(served, BaseException)
    assert answers(served, 8) == expected_of(LENGTH, num_choices=8)
    duo.settle(1.0)
    duo.check_idle()


@pytest.mark.parametrize("num_choices", [1, 2, 5])
def test_what_is_taken_is_what_was_counted(num_choices: int) -> None:
    """Around every border: exactly `num_blocks_to_start` blocks are taken for all choices, and all are given back."""
    for num_tokens in range(1, 3 * BLOCK + 2):
        pool = BlockPool(64)
        tables = take_tables(pool, BLOCK, num_tokens, num_choices)
        assert pool.num_blocks - pool.num_free == num_blocks_to_start(num_tokens, num_choices, BLOCK)
        assert all(table.num_tokens_held > num_tokens for table in tables)
        release_all(tables)
        assert pool.num_free == pool.num_blocks
        pool.check_integrity()
