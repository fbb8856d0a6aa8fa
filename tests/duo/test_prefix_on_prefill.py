"""Prompts that begin like earlier ones on a prefill worker: the same text, and only the rest is computed."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefill_worker.config import PrefillConfig
from tests.duo.asking import VOCAB, answers_of, leaves_in_time, prompt_scores, sampled
from tests.duo.asking_again import BASE, CHUNK, LONG, NUM_TOKENS, READS_ALONE, ask, heard, make_duo, text_of
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.oracle import prompt_of

MAX_TURNS = 200

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("blocks", [(16, 16), (16, 64), (64, 16), (8, 5), (5, 7)])
def test_whatever_is_found_the_text_is_the_same(blocks: tuple[int, int]) -> None:
    """All of it, a part, one token past a block, exactly some blocks, more behind it, nothing. The count is exact."""
    size, decode_size = blocks
    duo = Duo(
        DuoOptions(
            prefill_engine={"num_blocks": 128, "block_size": size},
            decode_engine={"num_blocks": 128, "block_size": decode_size},
            decode=READS_ALONE,
        )
    )
    prefill, other = duo.prefills[0], prompt_of(40, VOCAB, seed=1)
    assert ask(duo, BASE) == (0, text_of(BASE))
    n = 64 // size * size
    prompts = [
        (BASE, 100),
        (BASE[:50] + other, 50),
        (BASE[: n + 1], n + 1),
        (BASE[:n], n),
        (BASE + other, 100),
        (other, 0),
    ]
    for prompt, num_common in prompts:
        num_cached = min(num_common, len(prompt) - 1) // size * size
        before = prefill.num_prefilled_tokens
        assert ask(duo, prompt) == (num_cached, text_of(prompt))
        assert prefill.num_prefilled_tokens - before == len(prompt) - num_cached
    assert duo.decodes[0].num_local_prefill_tokens == 0
    duo.check_idle()


def test_without_a_cache_everything_is_computed() -> None:
    """None is kept, none is told."""
    duo = make_duo(PrefillConfig(max_step_tokens=CHUNK, prefix_cache=None))
    assert [ask(duo, BASE) for _ in range(2)] == [(0, text_of(BASE))] * 2
    assert duo.prefills[0].num_prefilled_tokens == 2 * len(BASE)
    assert duo.prefills[0].prefixes is None
    duo.check_idle()


def test_two_equal_prompts_at_once() -> None:
    """The second waits for its turn meanwhile, looks again, and computes only what the first has not."""
    duo = make_duo()

    async def both() -> list[tuple[int, list[int]]]:
        return await asyncio.gather(*(heard(duo, greedy(BASE, NUM_TOKENS)) for _ in range(2)))

    assert duo.run(both) == [(0, text_of(BASE)), (96, text_of(BASE))]
    assert duo.prefills[0].num_prefilled_tokens == len(BASE) + 4
    duo.check_idle()


def test_many_that_begin_alike_at_once() -> None:
    """Whoever computes what, in whatever order, the texts are right and what was told adds up."""
    duo = make_duo(PrefillConfig(max_step_tokens=40, policy="spf"))
    prompts = [LONG[:start] + prompt_of(length, VOCAB) for start in (0, 33, 96, 200) for length in (1, 16, 50)]

    async def together() -> list[tuple[int, list[int]]]:
        return await asyncio.gather(*(heard(duo, greedy(prompt, NUM_TOKENS)) for prompt in prompts))

    told = duo.run(together)
    assert [text for _, text in told] == [text_of(prompt) for prompt in prompts]
    num_cached = sum(number for number, _ in told)
    assert num_cached > 0
    assert duo.prefills[0].num_prefilled_tokens == sum(map(len, prompts)) - num_cached
    duo.check_idle()


def test_salts_do_not_share() -> None:
    """A prompt finds what was computed under its own salt, and nothing else."""
    duo = make_duo()
    asked = ["", "mine", "yours", "mine", "", "yours"]
    assert [ask(duo, BASE, salt)[0] for salt in asked] == [0, 0, 0, 96, 96, 96]
    duo.check_idle()


def test_a_prompt_that_is_scored_is_computed_and_kept() -> None:
    """Its scores are those without a cache, and the next prompt finds its blocks."""
    duo, plain = make_duo(), make_duo(PrefillConfig(max_step_tokens=CHUNK, prefix_cache=None))
    scored = replace(sampled(BASE), num_prompt_logprobs=2)
    assert ask(duo, BASE[:60])[0] == 0
    assert duo.run(lambda: prompt_scores(duo, scored)) == plain.run(lambda: prompt_scores(plain, scored))
    assert duo.prefills[0].num_prefilled_tokens == 60 + len(BASE)
    assert ask(duo, BASE) == (96, text_of(BASE))
    duo.check_idle()


def test_choices_are_the_same() -> None:
    """A prompt that was found is drawn from as one that was computed."""
    duo, asked = make_duo(), sampled(BASE, num_choices=3)
    assert duo.run(lambda: answers_of(duo, asked)) == duo.run(
        lambda: answers_of(duo, replace(asked, request_id=greedy(BASE).request_id))
    )
    assert duo.prefills[0].num_prefilled_tokens == len(BASE) + 4


@settings(deadline=None, max_examples=12)
@given(
    waves=st.lists(
        st.lists(st.tuples(st.integers(0, 2), st.integers(0, 90), st.integers(1, 40)), min_size=1, max_size=4),
        min_size=2,
        max_size=5,
    )
)
def test_texts_are_the_same_when_there_is_no_room_to_keep_all(waves: list[list[tuple[int, int, int]]]) -> None:
    """A pool of three prompts' blocks, prompts that part at any token: what is evicted is computed again."""
    duo = make_duo(num_blocks=24)
    for wave in waves:
        prompts = [prompt_of(90, VOCAB, seed)[:start] + prompt_of(length, VOCAB) for seed, start, length in wave]
        asked = [greedy(prompt, NUM_TOKENS) for prompt in prompts]
        assert duo.generate_all(asked) == [text_of(prompt) for prompt in prompts]
        duo.check_idle()


def test_what_is_evicted_is_computed_again() -> None:
    """More was seen than the pool holds: the oldest is not found any more, and everybody is served."""
    duo = make_duo(num_blocks=14)
    prompts = [BASE, *(prompt_of(100, VOCAB, seed) for seed in (1, 2, 3)), BASE]
    assert [ask(duo, prompt) for prompt in prompts] == [(0, text_of(prompt)) for prompt in prompts]
    prefixes = duo.prefills[0].prefixes
    assert prefixes is not None
    assert prefixes.counters.num_evicted_blocks >= prefixes.counters.num_stored_blocks - 14 > 0
    assert ask(duo, BASE)[0] == 96
    duo.check_idle()


def test_a_client_that_leaves_at_any_turn_leaves_nothing() -> None:
    """While blocks that the cache keeps are shipped, or before, or after: they stay sound, and the next one finds them."""
    duo = make_duo(PrefillConfig(max_step_tokens=16))
    ask(duo, LONG[:200])

    for num_turns in range(0, MAX_TURNS, 3):
        was_in_time = leaves_in_time(duo, greedy(LONG, NUM_TOKENS), num_turns)
        duo.settle(2.0)
        duo.check_idle()
        if not was_in_time:
            break
    else:
        raise AssertionError("the request never ended by itself")
    cached, text = ask(duo, LONG)
    assert cached >= 192
    assert text == text_of(LONG)


def test_a_wire_that_fails_leaves_the_cache_sound() -> None:
    """The transfer of cached blocks is given up, the decode worker computes the prompt, and the blocks are found again."""
    duo = make_duo()
    ask(duo, BASE)
    duo.fabric.faults.fail_write(num=1)
    assert ask(duo, BASE) == (96, text_of(BASE))
    assert duo.prefills[0].failed_transfers.num_all == 1
    assert ask(duo, BASE) == (96, text_of(BASE))
    duo.settle(15.0)
    duo.check_idle()
