"""Prompts that begin like earlier ones on a prefill worker: the same text, and only the rest is computed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from decode_worker.config import DecodeConfig
from engine.engine import Engine
from prefill_worker.config import PrefillConfig, Push
from prefill_worker.sequence import PrefillAnswer
from protocol.request import GeneratedToken, GenerateRequest
from protocol.ticket import Ticket
from protocol.wire_rule import Importance, WireCodec, WireRule
from router.generation import GenerationStart
from tests.duo.asking import VOCAB, answers_of, prompt_scores, sampled
from tests.support import duo as duo_module
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.events import events_of
from tests.support.oracle import answer_in_one_piece, prompt_of
from tests.support.tiny_model import tiny_engine
from transfer.codec.allocation import Scores
from transfer.codec.pool_codec import PoolCodec
from transfer.landing_contract import LandingConfig, LandingRequest
from transfer.transport import WriteRequest

NUM_TOKENS = 6
CHUNK = 32
BASE = prompt_of(100, VOCAB)
LONG = prompt_of(300, VOCAB)
MAX_TURNS = 200
READS_ALONE = DecodeConfig(max_step_tokens=64, max_sequences=16, prefix_cache=None)
"""Here only the prefill worker keeps prefixes."""

pytestmark = pytest.mark.timeout(60)


def _duo(config: PrefillConfig | None = None, num_blocks: int = 128, rule: WireRule | None = None) -> Duo:
    return Duo(
        DuoOptions(
            prefill=config or PrefillConfig(max_step_tokens=CHUNK),
            prefill_engine={"num_blocks": num_blocks},
            decode_engine={"num_blocks": 128},
            decode=READS_ALONE,
            landing=LandingConfig() if rule is None else LandingConfig(rule=rule),
        )
    )


async def _heard(duo: Duo, asked: GenerateRequest) -> tuple[int, list[int]]:
    """The cached tokens that the client is told, and the text."""
    events = [event async for event in events_of(duo.dispatcher.generate(asked))]
    assert isinstance(events[0], GenerationStart)
    return events[0].cached_tokens, [event.token_id for event in events if isinstance(event, GeneratedToken)]


def _ask(duo: Duo, prompt: list[int], salt: str = "") -> tuple[int, list[int]]:
    return duo.run(lambda: _heard(duo, replace(greedy(prompt, NUM_TOKENS), cache_salt=salt)))


def _text(prompt: list[int]) -> list[int]:
    return answer_in_one_piece(tiny_engine(), prompt, NUM_TOKENS)


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
    assert _ask(duo, BASE) == (0, _text(BASE))
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
        assert _ask(duo, prompt) == (num_cached, _text(prompt))
        assert prefill.num_prefilled_tokens - before == len(prompt) - num_cached
    assert duo.decodes[0].num_local_prefill_tokens == 0
    duo.check_idle()


def test_without_a_cache_everything_is_computed() -> None:
    """None is kept, none is told."""
    duo = _duo(PrefillConfig(max_step_tokens=CHUNK, prefix_cache=None))
    assert [_ask(duo, BASE) for _ in range(2)] == [(0, _text(BASE))] * 2
    assert duo.prefills[0].num_prefilled_tokens == 2 * len(BASE)
    assert duo.prefills[0].prefixes is None
    duo.check_idle()


def test_two_equal_prompts_at_once() -> None:
    """The second waits for its turn meanwhile, looks again, and computes only what the first has not."""
    duo = _duo()

    async def both() -> list[tuple[int, list[int]]]:
        return await asyncio.gather(*(_heard(duo, greedy(BASE, NUM_TOKENS)) for _ in range(2)))

    assert duo.run(both) == [(0, _text(BASE)), (96, _text(BASE))]
    assert duo.prefills[0].num_prefilled_tokens == len(BASE) + 4
    duo.check_idle()


def test_many_that_begin_alike_at_once() -> None:
    """Whoever computes what, in whatever order, the texts are right and what was told adds up."""
    duo = _duo(PrefillConfig(max_step_tokens=40, policy="spf"))
    prompts = [LONG[:start] + prompt_of(length, VOCAB) for start in (0, 33, 96, 200) for length in (1, 16, 50)]

    async def together() -> list[tuple[int, list[int]]]:
        return await asyncio.gather(*(_heard(duo, greedy(prompt, NUM_TOKENS)) for prompt in prompts))

    heard = duo.run(together)
    assert [text for _, text in heard] == [_text(prompt) for prompt in prompts]
    num_cached = sum(number for number, _ in heard)
    assert num_cached > 0
    assert duo.prefills[0].num_prefilled_tokens == sum(map(len, prompts)) - num_cached
    duo.check_idle()


def test_salts_do_not_share() -> None:
    """A prompt finds what was computed under its own salt, and nothing else."""
    duo = _duo()
    asked = ["", "mine", "yours", "mine", "", "yours"]
    assert [_ask(duo, BASE, salt)[0] for salt in asked] == [0, 0, 0, 96, 96, 96]
    duo.check_idle()


def test_a_prompt_that_is_scored_is_computed_and_kept() -> None:
    """Its scores are those without a cache, and the next prompt finds its blocks."""
    duo, plain = _duo(), _duo(PrefillConfig(max_step_tokens=CHUNK, prefix_cache=None))
    scored = replace(sampled(BASE), num_prompt_logprobs=2)
    assert _ask(duo, BASE[:60])[0] == 0
    assert duo.run(lambda: prompt_scores(duo, scored)) == plain.run(lambda: prompt_scores(plain, scored))
    assert duo.prefills[0].num_prefilled_tokens == 60 + len(BASE)
    assert _ask(duo, BASE) == (96, _text(BASE))
    duo.check_idle()


def test_choices_are_the_same() -> None:
    """A prompt that was found is drawn from as one that was computed."""
    duo, asked = _duo(), sampled(BASE, num_choices=3)
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
    duo = _duo(num_blocks=24)
    for wave in waves:
        prompts = [prompt_of(90, VOCAB, seed)[:start] + prompt_of(length, VOCAB) for seed, start, length in wave]
        asked = [greedy(prompt, NUM_TOKENS) for prompt in prompts]
        assert duo.generate_all(asked) == [_text(prompt) for prompt in prompts]
        duo.check_idle()


def test_what_is_evicted_is_computed_again() -> None:
    """More was seen than the pool holds: the oldest is not found any more, and everybody is served."""
    duo = _duo(num_blocks=14)
    prompts = [BASE, *(prompt_of(100, VOCAB, seed) for seed in (1, 2, 3)), BASE]
    assert [_ask(duo, prompt) for prompt in prompts] == [(0, _text(prompt)) for prompt in prompts]
    prefixes = duo.prefills[0].prefixes
    assert prefixes is not None
    assert prefixes.counters.num_evicted_blocks >= prefixes.counters.num_stored_blocks - 14 > 0
    assert _ask(duo, BASE)[0] == 96
    duo.check_idle()


def _direct(duo: Duo, prompt: list[int], first_token: int = 0) -> PrefillAnswer:
    """Has a prompt read whose KV from `first_token` on is to land in the decode worker's first blocks."""
    asked, prefill = greedy(prompt, NUM_TOKENS), duo.prefills[0]
    landing = LandingRequest(asked.request_id, prefill.identity, first_token, len(prompt), tuple(range(19)))
    ticket = duo.decodes[0].receiver.reserve(landing, duo.clock.now)
    answer = prefill.submit(asked, ticket, 600.0)
    duo.settle()
    return answer.result(0)


def _kv(engine: Engine, start: int, end: int) -> torch.Tensor:
    """KV of tokens `start` to `end - 1` of a sequence in an engine's first blocks."""
    return engine.cache.pool.flatten(2, 3)[:, :, start:end].clone()


@pytest.mark.parametrize("first_token", [0, 64, 96, 97, 112, 160, 299])
def test_what_crosses_begins_where_the_ticket_does(first_token: int) -> None:
    """The decode worker has less, as much, or more than the prefill worker: what it lacks lands, whoever computed it."""
    duo, whole = _duo(), tiny_engine()
    answer_in_one_piece(whole, LONG, 1)
    duo.run(lambda: duo.fleet.look())
    _ask(duo, LONG[:100])
    duo.decodes[0].engine.cache.pool.zero_()
    answer = _direct(duo, LONG, first_token)
    assert answer.num_cached_tokens == 96
    decode = duo.decodes[0].engine
    torch.testing.assert_close(_kv(decode, first_token, 300), _kv(whole, first_token, 300), atol=1e-5, rtol=1e-5)
    assert not _kv(decode, 0, first_token).any()
    duo.check_idle()


def test_what_was_found_crosses_before_anything_is_computed() -> None:
    """A prompt that waits behind another for its tokens of a step has its cached chunks there already."""
    duo = _duo(PrefillConfig(max_step_tokens=16, push=Push.CHUNKS))
    _ask(duo, BASE)
    prefill, decode = duo.prefills[0], duo.decodes[0]
    before, asked = prefill.num_prefilled_tokens, greedy(BASE, NUM_TOKENS)
    first = prefill.submit(greedy(LONG, NUM_TOKENS), None, 600.0)
    landing = LandingRequest(asked.request_id, prefill.identity, 0, 100, tuple(range(7)))
    second = prefill.submit(asked, decode.receiver.reserve(landing, duo.clock.now), 600.0)
    decode.engine.cache.pool.zero_()
    while prefill.num_prefilled_tokens - before < 200:
        duo.turn()
    assert not first.done()
    assert not second.done()
    assert _kv(decode.engine, 0, 64).count_nonzero()
    duo.settle()
    assert second.result(0).num_cached_tokens == 96
    duo.check_idle()


@pytest.mark.parametrize("push", Push)
def test_whenever_chunks_leave(push: Push) -> None:
    """The text is the same; at the end means that what was found waits too."""
    duo = _duo(PrefillConfig(max_step_tokens=16, push=push))
    uncomputed: list[int] = []
    _ask(duo, LONG[:100])

    def note(_: WriteRequest) -> bool:
        uncomputed.append(duo.prefills[0].num_waiting_tokens)
        return False

    duo.fabric.faults.fail_write(when=note)
    assert _ask(duo, LONG) == (96, _text(LONG))
    assert len(uncomputed) > 1
    assert any(uncomputed) is (push is not Push.END)
    duo.check_idle()


class Watching(PoolCodec):
    """The codec itself; it notes by what importance the chunks of prompts were written."""

    seen: list[Scores]

    def pack(
        self,
        ticket: Ticket,
        chunk: int,
        block_ids: Sequence[int],
        slot: memoryview,
        importance: Sequence[float] | Scores | None = None,
    ) -> int:
        """See `PoolCodec.pack`."""
        if block_ids:
            assert isinstance(importance, np.ndarray)
            self.seen.append(importance)
        return super().pack(ticket, chunk, block_ids, slot, importance)


@pytest.mark.parametrize("step_tokens", [400, 24])
def test_the_window_decides_for_what_was_found_too(step_tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that writes tokens by their importance: as many queries are computed as tell it, and chunks that were found are
    written by what the first slice says, as those that are computed are. In one slice nothing differs from a cold cache.
    """
    seen: list[Scores] = []
    monkeypatch.setattr(Watching, "seen", seen, raising=False)
    monkeypatch.setattr(duo_module, "PoolCodec", Watching)
    duo = _duo(PrefillConfig(max_step_tokens=step_tokens), rule=WireRule(WireCodec.CHANNEL, 0.5, Importance.WINDOW))
    for length in (300, 288, 287):
        computed, cold = _ask(duo, LONG[:length], salt=f"{length}"), [*seen]
        seen.clear()
        found, warm = _ask(duo, LONG[:length], salt=f"{length}"), [*seen]
        seen.clear()
        assert found[0] == (length - 64) // 16 * 16
        assert len(warm) == len(cold)
        if step_tokens > length:
            assert found[1] == computed[1]
            assert all(np.allclose(one, other, atol=1e-6) for one, other in zip(cold, warm, strict=True))
        # The last chunk is written by the last 64 queries, or all that were since the cached part.
        ranks = [np.argsort(np.argsort(one[-1][:length])) for one in (cold, warm)]
        assert np.corrcoef(ranks[0], ranks[1])[0, 1] > 0.9
    duo.check_idle()


def test_a_client_that_leaves_at_any_turn_leaves_nothing() -> None:
    """While blocks that the cache keeps are shipped, or before, or after: they stay sound, and the next one finds them."""
    duo = _duo(PrefillConfig(max_step_tokens=16))
    _ask(duo, LONG[:200])

    async def listen() -> None:
        async with contextlib.aclosing(events_of(duo.dispatcher.generate(greedy(LONG, NUM_TOKENS)))) as events:
            async for _ in events:
                pass

    async def cancel_after(num_turns: int) -> bool:
        task = asyncio.create_task(listen())
        for _ in range(num_turns):
            await asyncio.sleep(0)
        was_in_time = task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return was_in_time

    for num_turns in range(0, MAX_TURNS, 3):
        was_in_time = duo.run(lambda n=num_turns: cancel_after(n))  # type: ignore[misc]
        duo.settle(2.0)
        duo.check_idle()
        if not was_in_time:
            break
    else:
        raise AssertionError("the request never ended by itself")
    cached, text = _ask(duo, LONG)
    assert cached >= 192
    assert text == _text(LONG)


def test_a_wire_that_fails_leaves_the_cache_sound() -> None:
    """The transfer of cached blocks is given up, the decode worker computes the prompt, and the blocks are found again."""
    duo = _duo()
    _ask(duo, BASE)
    duo.fabric.faults.fail_write(num=1)
    assert _ask(duo, BASE) == (96, _text(BASE))
    assert duo.prefills[0].num_transfer_failures == 1
    assert _ask(duo, BASE) == (96, _text(BASE))
    duo.settle(15.0)
    duo.check_idle()
