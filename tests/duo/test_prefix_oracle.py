"""Whatever is found in prefix caches, and wherever: the text is that of one engine that reads the prompt in one piece."""

from __future__ import annotations

import asyncio
from functools import cache

import pytest

from decode_worker.config import DecodeConfig
from engine.engine import Engine
from engine.prefix_cache.policy import PrefixCachePolicy
from tests.duo.asking import VOCAB, answers_of, sampled
from tests.duo.prefixes import WHERE, cache_of, caching_duo, found_tokens, num_brought
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.oracle import answer_in_one_piece, prompt_of
from tests.support.tiny_model import TINY_FAMILIES, tiny_engine

pytestmark = pytest.mark.timeout(120)

NUM_TOKENS = 10
FIRST = prompt_of(130, VOCAB)
OTHER = prompt_of(50, VOCAB, seed=7)
# The whole again, a part that ends before, at and behind borders of blocks of 5, 7, 8, 16 and 64, and what goes on otherwise.
LATER = [
    FIRST,
    *(FIRST[:length] for length in (1, 8, 15, 16, 17, 35, 36, 63, 64, 65, 112, 113, 128, 129)),
    *(FIRST[:length] + OTHER for length in (7, 16, 63, 64, 65, 130)),
    FIRST + OTHER[:1],
]
BLOCKS = [(16, 16), (16, 8), (8, 16), (16, 64), (64, 16), (5, 7)]
PLACES_AND_BLOCKS = [
    *((where, BLOCKS[1]) for where in WHERE),
    *(("both", blocks) for blocks in BLOCKS if blocks != BLOCKS[1]),
]
"""Every place once, and every pair of sizes once: where blocks end does not depend on who keeps them."""


@cache
def _oracle(family: str = "llama") -> Engine:
    return tiny_engine(num_blocks=64, family=family)


@cache
def _text(prompt: tuple[int, ...], family: str = "llama", num_tokens: int = NUM_TOKENS) -> tuple[int, ...]:
    return tuple(answer_in_one_piece(_oracle(family), prompt, num_tokens))


def text_of(prompt: list[int], family: str = "llama", num_tokens: int = NUM_TOKENS) -> list[int]:
    """What one engine makes of a prompt in one piece."""
    return list(_text(tuple(prompt), family, num_tokens))


@pytest.mark.parametrize(("where", "blocks"), PLACES_AND_BLOCKS)
def test_one_after_the_other(where: str, blocks: tuple[int, int]) -> None:
    """Each prompt finds of the first, on D, exactly its full blocks, and brings the rest; on P they may be found as well."""
    duo = caching_duo(where, blocks)
    assert duo.generate_all([greedy(FIRST, NUM_TOKENS)]) == [text_of(FIRST)]
    known = [FIRST + text_of(FIRST)[:-1]]
    for prompt in LATER:
        num_before = num_brought(duo)
        assert duo.generate_all([greedy(prompt, NUM_TOKENS)]) == [text_of(prompt)]
        num_found = max(found_tokens(prompt, one, blocks[1]) for one in known) if "D" in where or where == "both" else 0
        assert num_brought(duo) - num_before == len(prompt) - num_found
        known.append(prompt + text_of(prompt)[:-1])
        duo.check_idle()


@pytest.mark.parametrize("where", WHERE)
def test_all_at_once(where: str) -> None:
    """Prompts that begin alike come together, twice: some are found, some are computed side by side."""
    duo = caching_duo(where, num_blocks=320)
    for _ in range(2):
        assert duo.generate_all([greedy(prompt, NUM_TOKENS) for prompt in LATER]) == [text_of(one) for one in LATER]
        duo.check_idle()


@pytest.mark.parametrize("num_prefill", [0, 1])
@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_every_family(family: str, num_prefill: int) -> None:
    """Sliding windows look back into blocks that were found."""
    duo = Duo(DuoOptions(num_prefill, prefill_engine={"family": family}, decode_engine={"family": family}))
    for prompt in (FIRST[:70], FIRST[:48] + OTHER[:9], FIRST[:49]):
        assert duo.generate_all([greedy(prompt, NUM_TOKENS)]) == [text_of(prompt, family)]
    assert cache_of(duo.decodes[0]).counters.num_hit_tokens == 48 + 48
    duo.check_idle()


@pytest.mark.parametrize("where", WHERE)
@pytest.mark.parametrize("decode_block", [16, 8])
def test_turns_of_a_conversation(where: str, decode_block: int) -> None:
    """Each prompt is the one before, its answer and more. D finds the answers too, but for their last token."""
    duo = caching_duo(where, (16, decode_block))
    prompt, known = FIRST[:20], list[int]()
    for turn in range(6):
        num_before = num_brought(duo)
        assert duo.generate_all([greedy(prompt, NUM_TOKENS)]) == [text_of(prompt)]
        num_found = found_tokens(prompt, known, decode_block) if "D" in where or where == "both" else 0
        assert num_brought(duo) - num_before == len(prompt) - num_found
        known = prompt + text_of(prompt)[:-1]
        prompt = prompt + text_of(prompt) + OTHER[turn * 7 : turn * 7 + 7]
        duo.check_idle()


@pytest.mark.parametrize("where", WHERE)
def test_several_answers(where: str) -> None:
    """Three answers begin with what was found; a turn that goes on from any of them finds that answer."""
    duo = caching_duo(where, (16, 8))
    prompt = FIRST[:45]
    asked = sampled(prompt, 12, num_choices=3)
    expected = [answer_in_one_piece(_oracle(), prompt, 12, asked.sampling_of(choice)) for choice in range(3)]
    for _ in range(2):
        again = sampled(prompt, 12, num_choices=3)
        assert duo.run(lambda again=again: answers_of(duo, again)) == expected  # type: ignore[misc]
    for answer in expected:
        num_before = num_brought(duo)
        turn = prompt + answer + OTHER[:3]
        assert duo.generate_all([greedy(turn, NUM_TOKENS)]) == [text_of(turn)]
        num_found = found_tokens(turn, prompt + answer[:-1], 8) if "D" in where or where == "both" else 0
        assert num_brought(duo) - num_before == len(turn) - num_found
    duo.check_idle()


@pytest.mark.parametrize("policy", PrefixCachePolicy)
@pytest.mark.parametrize("num_prefill", [0, 1])
@pytest.mark.parametrize("swap_bytes", [0, 1 << 20])
def test_under_forced_preemption(swap_bytes: int, num_prefill: int, policy: PrefixCachePolicy) -> None:
    """Requests that share a beginning lose their blocks, find again what was not given away, and end the same; so do those
    whose KV is swapped, which is brought back into blocks of their own.
    """
    options = DuoOptions(
        num_prefill=num_prefill,
        decode_engine={"num_blocks": 30, "block_size": 4},
        decode=DecodeConfig(max_step_tokens=48, max_sequences=8, prefix_cache=policy, swap_bytes=swap_bytes),
    )
    duo = Duo(options)
    prompts = [FIRST[:20] + prompt_of(length, VOCAB) for length in (60, 50, 40, 30, 20, 12, 5, 1)]
    for _ in range(3):
        answers = duo.generate_all([greedy(prompt, 20) for prompt in prompts])
        assert answers == [text_of(prompt, num_tokens=20) for prompt in prompts]
        duo.check_idle()
    decode = duo.decodes[0]
    assert decode.num_preemptions > 0
    assert (decode.num_swaps > 0) == (swap_bytes > 0)
    assert cache_of(decode).counters.num_hit_tokens > 0
    assert cache_of(decode).counters.num_evicted_blocks > 0


@pytest.mark.parametrize("where", ["D", "both", "D alone"])
def test_evicted_prefixes(where: str) -> None:
    """A pool that holds two conversations of five: what was evicted in the middle of a chain is brought anew."""
    duo = caching_duo(where, (16, 8), num_blocks=40)
    prompts = [prompt_of(90 + number, VOCAB, seed=number) for number in range(5)]
    for turn in range(4):
        for prompt in prompts[: 5 - turn % 2 * 3]:
            longer = prompt + OTHER[: turn * 6]
            assert duo.generate_all([greedy(longer, NUM_TOKENS)]) == [text_of(longer)]
            duo.check_idle()
    assert cache_of(duo.decodes[0]).counters.num_evicted_blocks > 0
    assert cache_of(duo.decodes[0]).counters.num_hit_tokens > 0


def test_seeded_answers() -> None:
    """A draw does not depend on what was found."""
    duo = caching_duo()
    asked = sampled(FIRST)
    expected = [answer_in_one_piece(_oracle(), FIRST, NUM_TOKENS, asked.sampling)]

    async def work() -> list[list[list[int]]]:
        return [await answers_of(duo, asked)] + await asyncio.gather(*(answers_of(duo, sampled(FIRST)) for _ in "abc"))

    assert duo.run(work) == [expected] * 4
    duo.check_idle()
