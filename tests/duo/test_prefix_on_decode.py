"""The decode worker's prefix cache: what is found and what must not be, how exactly it is told, and that nothing leaks."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from decode_worker.config import DecodeConfig
from protocol.errors import NotConnected
from protocol.ids import WorkerId, new_request_id
from protocol.phase import Phase
from protocol.wire_rule import Importance, WireCodec, WireRule
from tests.duo.asking import LENGTH, NUM_TOKENS, PROMPT, VOCAB, generate_and, request
from tests.duo.prefixes import ask, cache_of, caching_duo, num_brought, start_and_tokens, text_of
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.oracle import prompt_of
from transfer.landing_contract import LandingConfig

pytestmark = pytest.mark.timeout(120)

BLOCK = 16
FOUND = LENGTH // BLOCK * BLOCK
LOSSY = WireRule(WireCodec.CHANNEL, 0.4, Importance.POSITIONAL)
LEAST = 0.37
MAX_TURNS = 400


def test_hits_are_not_shipped(expected: list[int]) -> None:
    """Of a prompt that D knows only its last tokens cross, and only they count as landed."""
    duo = caching_duo("D")
    assert ask(duo, request()) == (expected, LENGTH)
    num_bytes = duo.decodes[0].admission.num_transfer_bytes
    assert ask(duo, request()) == (expected, LENGTH - FOUND)
    admission = duo.decodes[0].admission
    assert admission.num_transfer_bytes - num_bytes < num_bytes / 10
    assert admission.num_landed_half_bytes == num_brought(duo) * 2 * duo.decodes[0].engine.layout.elements_per_token
    assert (duo.decodes[0].num_local_prefill_tokens, admission.num_transfers) == (0, 2)


@pytest.mark.parametrize("where", ["D", "D alone"])
def test_salts_do_not_share(where: str, expected: list[int]) -> None:
    """Each finds what was said under its own salt, and nothing else."""
    duo = caching_duo(where)
    for num_new in (LENGTH, LENGTH - FOUND):
        for salt in ("", "a", "b"):
            assert ask(duo, replace(request(), cache_salt=salt)) == (expected, num_new)


def test_lossy_and_lossless_do_not_share(expected: list[int]) -> None:
    """A prefix that crossed with loss serves requests under the same rule only, whichever came first."""
    duo = caching_duo("D", landing=LandingConfig(rule=LOSSY), least_budget=LEAST)
    budgets = (None, 1.0, LEAST)
    first = {budget: ask(duo, replace(request(), kv_wire_budget=budget)) for budget in budgets}
    assert {budget: num_new for budget, (_, num_new) in first.items()} == dict.fromkeys(budgets, LENGTH)
    assert first[1.0][0] == expected
    for budget in budgets:
        text, num_new = ask(duo, replace(request(), kv_wire_budget=budget))
        assert num_new == LENGTH - FOUND
        assert text[0] == first[budget][0][0]
    assert ask(duo, replace(request(), kv_wire_budget=1.0))[0] == expected


def test_what_is_generated_over_loss_is_lossy(expected: list[int]) -> None:
    """The next turn finds the answer under the same rule; without loss nothing of it is found."""
    duo = caching_duo("D", landing=LandingConfig(rule=LOSSY), least_budget=LEAST)
    answer, _ = ask(duo, request(30))
    turn = [*PROMPT, *answer]
    num_found = (len(turn) - 1) // BLOCK * BLOCK
    assert ask(duo, replace(greedy(turn), kv_wire_budget=1.0)) == (text_of(tuple(turn), 12), len(turn))
    assert ask(duo, greedy(turn))[1] == len(turn) - num_found


@pytest.mark.parametrize("fault", ["corrupt_write", "drop_write"])
@pytest.mark.parametrize("is_lossy", [False, True])
def test_a_landing_given_up(fault: str, is_lossy: bool, expected: list[int]) -> None:
    """What was found stays, nothing of what landed in part does, and what D computes instead is exact for all that follow."""
    landing = LandingConfig(rule=LOSSY) if is_lossy else LandingConfig()
    duo = caching_duo("D", landing=landing, least_budget=LEAST if is_lossy else None)
    ask(duo, greedy(PROMPT[:40]))
    getattr(duo.fabric.faults, fault)(num=1000)
    text, _ = ask(duo, request())
    assert text == expected
    # The first token is computed with the prompt, since P has drawn it already.
    assert duo.decodes[0].num_local_prefill_tokens == LENGTH + 1 - (0 if is_lossy else 32)
    assert duo.decodes[0].admission.failed_transfers.num_all == 1
    duo.fabric.faults = type(duo.fabric.faults)()
    assert ask(duo, replace(request(), kv_wire_budget=1.0)) == (expected, LENGTH - FOUND)


@pytest.mark.parametrize("num_prefill", [0, 1])
def test_lossy_requests_that_are_preempted(num_prefill: int) -> None:
    """They are computed again under exact names: a lossless request that finds their KV has the oracle's text."""
    lengths = (60, 47, 40, 33, 20)
    duo = Duo(
        DuoOptions(
            num_prefill=num_prefill,
            decode_engine={"num_blocks": 36, "block_size": 4},
            landing=LandingConfig(rule=LOSSY),
            decode=DecodeConfig(max_step_tokens=48, max_sequences=8, min_wire_budget=LEAST),
        )
    )
    prompts = [prompt_of(length, VOCAB) for length in lengths]
    duo.generate_all([greedy(prompt, 24) for prompt in prompts])
    assert duo.decodes[0].num_preemptions > 0
    for prompt in prompts:
        assert duo.generate_all([replace(greedy(prompt), kv_wire_budget=1.0)]) == [text_of(tuple(prompt), 12)]
    duo.check_idle()


@pytest.mark.parametrize("is_cached", [True, False])
def test_cached_tokens_are_told_exactly(is_cached: bool) -> None:
    """Where D reads a prompt, it says how much of it it did not compute; without a cache that is nothing."""
    duo = caching_duo("D alone")
    if not is_cached:
        options = duo.options
        duo = Duo(replace(options, decode=replace(options.decode, prefix_cache=None)))
    told = []
    for prompt in (PROMPT, PROMPT, PROMPT[:97], PROMPT[:96], PROMPT[:40] + PROMPT):
        num_before = num_brought(duo)
        start, ids = duo.run(lambda prompt=prompt: start_and_tokens(duo, greedy(prompt, NUM_TOKENS)))  # type: ignore[misc]
        assert ids == text_of(tuple(prompt))
        assert start.cached_tokens == len(prompt) - (num_brought(duo) - num_before)
        told.append(start.cached_tokens)
    assert told == ([0, 96, 96, 80, 32] if is_cached else [0] * 5)


def test_cached_tokens_of_preempted_prompts() -> None:
    """What a prompt had computed before it lost its blocks, and finds again, does not count as cached."""
    duo = Duo(
        DuoOptions(
            num_prefill=0,
            decode_engine={"num_blocks": 20, "block_size": 4},
            decode=DecodeConfig(max_step_tokens=4, max_sequences=4),
        )
    )
    # The first answer takes the block that is left, and then those of the second prompt, half of which has been read by then.
    first, second = greedy(prompt_of(30, VOCAB), 12), greedy(prompt_of(40, VOCAB), 4)

    async def work() -> list[int]:
        tasks = [asyncio.create_task(start_and_tokens(duo, asked)) for asked in (first, second)]
        return [(await task)[0].cached_tokens for task in tasks]

    assert duo.run(work) == [0, 0]
    decode = duo.decodes[0]
    assert decode.num_preemptions == 1
    num_again = cache_of(decode).counters.num_hit_tokens
    assert num_again >= 16
    assert 30 + 40 <= decode.num_local_prefill_tokens < 30 + 40 + 4
    duo.check_idle()


@pytest.mark.parametrize("where", ["D", "D alone"])
def test_scores_of_prompts(where: str) -> None:
    """A prompt to be scored where it is read finds nothing there, though it leaves its KV; read by P it may. The scores are
    the same, and the next request finds it all.
    """
    duo = caching_duo(where)
    scored = [replace(request(), request_id=new_request_id(), num_prompt_logprobs=2) for _ in range(2)]
    ask(duo, greedy(PROMPT[:40]))
    starts = []
    for asked, num_new in zip(scored, (LENGTH - 32, LENGTH - FOUND), strict=True):
        num_before = num_brought(duo)
        start, ids = duo.run(lambda asked=asked: start_and_tokens(duo, asked))  # type: ignore[misc]
        assert ids == text_of(tuple(PROMPT))
        assert num_brought(duo) - num_before == (LENGTH if where == "D alone" else num_new)
        assert start.prompt_logprobs is not None
        starts.append(start)
    assert len(starts[0].prompt_logprobs or ()) == LENGTH - 1
    assert starts[0].cached_tokens == starts[1].cached_tokens == 0
    for one, other in zip(starts[0].prompt_logprobs or (), starts[1].prompt_logprobs or (), strict=True):
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
    assert ask(duo, request())[1] == LENGTH - FOUND


def test_prompts_that_begin_alike_and_come_at_once() -> None:
    """The second waits for no one, and still computes only what the first has not computed before its turn."""
    duo = caching_duo("D alone")
    other = [*PROMPT[:96], *prompt_of(9, VOCAB)]
    answers = duo.generate_all([request(), greedy(other, NUM_TOKENS), request()])
    assert answers == [text_of(tuple(PROMPT)), text_of(tuple(other)), text_of(tuple(PROMPT))]
    # A step has 64 tokens: the first 64 of the first prompt, then its last 36 and 28 of the second, whose first 64 are found
    # by then. The third finds 96 when its turn comes, and the second goes on from the middle of its block.
    assert num_brought(duo) == 64 + 36 + (len(other) - 64) + (LENGTH - 96)
    counters = cache_of(duo.decodes[0]).counters
    assert (counters.num_queries, counters.num_query_tokens) == (3, 2 * LENGTH + len(other))
    assert counters.num_hit_tokens == 64 + 96
    duo.check_idle()


def test_a_prompt_shares_its_blocks_while_others_run(expected: list[int]) -> None:
    """What is found is held by all that found it and by the cache, and none of it is written to again."""
    duo = caching_duo("both")
    ask(duo, request())
    decode = duo.decodes[0]
    seen: list[list[int]] = []

    def look() -> None:
        tables = [one.held_table().block_ids for one in decode.roster.in_phase(Phase.DECODING)]
        if len(tables) == 2 and not seen:
            shared = list(tables[0][: FOUND // BLOCK])
            assert [list(table[: FOUND // BLOCK]) for table in tables] == [shared, shared]
            assert [decode.pool.num_holders(block) for block in shared] == [3] * len(shared)
            seen.append(shared)

    async def work() -> list[list[int]]:
        asked = [generate_and(duo, lambda _: look(), request()) for _ in range(2)]
        return list(await asyncio.gather(*asked))

    assert duo.run(work) == [expected] * 2
    assert len(seen) == 1
    duo.check_idle()


def test_no_slots_no_looking(expected: list[int]) -> None:
    """A request that waits for landing slots asks the cache when it has some, not in every step."""
    duo = Duo(DuoOptions(num_slots=1, wire_bytes_per_second=200_000))
    assert duo.generate_all([request() for _ in range(4)]) == [expected] * 4
    assert cache_of(duo.decodes[0]).counters.num_queries == 4
    duo.check_idle()


def test_a_stranger_is_refused_with_its_own_error() -> None:
    """Without a link to P there are no names, no blocks and no ticket."""
    duo = Duo()
    decode = duo.decodes[0]
    ticket = decode.reserve(request(), WorkerId.fresh("stranger"), "router", 60.0)
    duo.settle(1.0)
    with pytest.raises(NotConnected, match="stranger"):
        ticket.result(timeout=0)
    duo.check_idle()
