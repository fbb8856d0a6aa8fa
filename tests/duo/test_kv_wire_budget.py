"""Requests that choose the precision of their own KV, and what is told of the KV that crossed for each."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch

from decode_worker.config import DecodeConfig
from engine.prefix_cache.policy import PrefixCachePolicy
from prefill_worker.config import PrefillConfig
from protocol.errors import BadRequest, WorkerUnavailable
from protocol.pace import TransferPlan
from protocol.request import GeneratedToken, GenerateRequest
from protocol.ticket import Ticket
from protocol.wire_rule import LOSSLESS, Importance, WireCodec, WireRule
from router.fleet.clients import PrefillOutcome
from router.fleet.dispatch import continuation
from router.generation import GenerationStart, KvLanded
from tests.duo.asking import ids, sampled
from tests.support import duo as duo_module
from tests.support.duo import Duo, DuoOptions, greedy
from tests.support.events import events_of
from tests.support.in_process import InProcessPrefill
from tests.support.oracle import answer_in_one_piece, prompt_of
from tests.support.tiny_model import tiny_engine
from transfer.codec.budget import sixteen_bit_bytes
from transfer.codec.pool_codec import PoolCodec
from transfer.landing_contract import LandingConfig

NUM_TOKENS = 6
LOSSY = WireRule(WireCodec.CHANNEL, 0.4, Importance.POSITIONAL)
LEAST = 0.37
"""The tiny model's scales weigh more than a real one's: it reaches no less."""
BLOCKS = {"num_blocks": 128}
PROMPT = prompt_of(300, 97)
Landings = list[tuple[Ticket, tuple[int, ...]]]


class Watching(PoolCodec):
    """The codec itself; it notes what has landed where, link tests left out."""

    landed: Landings

    def unpack(self, ticket: Ticket, chunk: int, block_ids: Sequence[int], slot: memoryview) -> None:
        """See `PoolCodec.unpack`."""
        super().unpack(ticket, chunk, block_ids, slot)
        if block_ids and chunk == 0:
            self.landed.append((ticket, tuple(block_ids)))


@pytest.fixture
def landed(monkeypatch: pytest.MonkeyPatch) -> Landings:
    """The tickets of what has landed in the duo of a test, in order, and its blocks there."""
    found: Landings = []
    monkeypatch.setattr(Watching, "landed", found, raising=False)
    monkeypatch.setattr(duo_module, "PoolCodec", Watching)
    return found


def _duo(
    rule: WireRule = LOSSY,
    least: float | None = LEAST,
    num_prefill: int = 1,
    num_decode: int = 1,
    prefix_cache: PrefixCachePolicy | None = PrefixCachePolicy.ARC,
) -> Duo:
    return Duo(
        DuoOptions(
            num_prefill=num_prefill,
            num_decode=num_decode,
            landing=LandingConfig(rule=rule),
            prefill=PrefillConfig(max_step_tokens=32, prefix_cache=prefix_cache),
            decode=DecodeConfig(max_step_tokens=64, max_sequences=16, min_wire_budget=least, prefix_cache=prefix_cache),
            prefill_engine=BLOCKS,
            decode_engine=BLOCKS,
        )
    )


def _asked(budget: float | None, num_prompt_tokens: int = len(PROMPT), num_tokens: int = NUM_TOKENS) -> GenerateRequest:
    return replace(greedy(PROMPT[:num_prompt_tokens], num_tokens), kv_wire_budget=budget)


async def _heard(duo: Duo, asked: GenerateRequest) -> tuple[list[int], list[KvLanded]]:
    """Ids of an only answer, and what landed for it."""
    events = [event async for event in events_of(duo.dispatcher.generate(asked))]
    assert isinstance(events[0], GenerationStart)
    tokens = [event for event in events if isinstance(event, GeneratedToken)]
    return ids(tokens), [event for event in events if isinstance(event, KvLanded)]


def test_a_budget_of_one_lands_bit_for_bit_on_a_lossy_server(landed: Landings) -> None:
    """The two caches agree in every bit of the prompt's KV, which they do not without it; the text is the oracle's."""
    duo = _duo(prefix_cache=None)
    pools = duo.prefills[0].engine.cache.pool, duo.decodes[0].engine.cache.pool
    for budget, is_exact in ((None, False), (1.0, True)):
        text, _ = duo.run(lambda budget=budget: _heard(duo, _asked(budget)))  # type: ignore[misc]
        ticket, blocks = landed[-1]
        assert ticket.rule.is_lossless is is_exact
        # Alone in its pool, where none is kept, the prompt takes the same blocks each time on either side.
        crossed = [pool[:, :, list(blocks)].flatten(2, 3)[:, :, : len(PROMPT)] for pool in pools]
        assert torch.equal(*crossed) is is_exact
    assert text == answer_in_one_piece(tiny_engine(num_blocks=128), PROMPT, NUM_TOKENS)
    duo.check_idle()


def test_requests_of_several_budgets_run_side_by_side(landed: Landings) -> None:
    """Each ticket has its request's rule: the server's own with another budget; chunks are as long as that rule lets them."""
    budgets = (None, LEAST, 0.5, 0.8, 1.0)
    duo = _duo()
    duo.generate_all([_asked(budget) for budget in budgets])
    rules = {ticket.rule.budget: ticket.rule for ticket, _ in landed}
    assert rules == {budget: replace(LOSSY, budget=budget) for budget in (LEAST, 0.4, 0.5, 0.8)} | {1.0: LOSSLESS}
    lengths = [ticket.chunk_tokens for ticket, _ in sorted(landed, key=lambda one: one[0].rule.budget)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]
    duo.check_idle()


@pytest.mark.parametrize("num_prompt_tokens", [256, 300])
@pytest.mark.parametrize("budget", [LEAST, 0.4, 0.5, 0.8])
def test_what_crossed_is_within_a_hundredth_of_what_was_asked(budget: float, num_prompt_tokens: int) -> None:
    """The one landing of a request is told with its real bytes, which are those of both workers' books."""
    duo = _duo()
    _, (told,) = duo.run(lambda: _heard(duo, _asked(budget, num_prompt_tokens)))
    decode = duo.decodes[0]
    assert told.half_bytes == sixteen_bit_bytes(decode.engine.layout, num_prompt_tokens)
    assert told.wire_bytes == duo.prefills[0].num_transfer_bytes
    assert told.wire_bytes / told.half_bytes == pytest.approx(budget, rel=0.01)
    by_tier = decode.receiver.bytes_by_tier()
    assert by_tier == duo.prefills[0].sender.bytes_by_tier()
    assert sum(by_tier.values()) == told.wire_bytes
    # The sinks are at 16 bits, and nothing crosses as the cache has it.
    assert (
        {"16-bit", "overhead"} < by_tier.keys() <= {"16-bit", "8-bit", "7-bit", "6-bit", "5-bit", "4-bit", "overhead"}
    )
    admission = decode.admission
    assert (admission.num_landed_wire_bytes, admission.num_landed_half_bytes) == (told.wire_bytes, told.half_bytes)


def test_a_lossless_server_may_let_requests_have_less(landed: Landings) -> None:
    """Per channel; who asks for nothing still gets the cache's own bytes, twice those of 16 bits here."""
    duo = _duo(LOSSLESS, least=LEAST)
    _, (less,) = duo.run(lambda: _heard(duo, _asked(0.4)))
    _, (own,) = duo.run(lambda: _heard(duo, _asked(None)))
    assert [ticket.rule for ticket, _ in landed] == [replace(LOSSLESS, codec=WireCodec.CHANNEL, budget=0.4), LOSSLESS]
    assert less.wire_bytes / less.half_bytes == pytest.approx(0.4, rel=0.01)
    assert own.wire_bytes / own.half_bytes == pytest.approx(2.0, rel=0.03)  # chunks are small here, headers are not


@pytest.mark.parametrize(("least", "asked", "bounds"), [(LEAST, 0.36, "0.37 to 1"), (None, 0.39, "0.4 to 1")])
@pytest.mark.parametrize("num_prefill", [0, 1])
def test_a_worker_gives_no_request_less_than_it_allows(
    least: float | None, asked: float, bounds: str, num_prefill: int
) -> None:
    """Whatever a router lets through; the error names the field and the bounds, and nothing is held."""
    duo = _duo(least=least, num_prefill=num_prefill)
    with pytest.raises(BadRequest, match=bounds) as caught:
        duo.run(lambda: _heard(duo, _asked(asked)))
    assert caught.value.param == "kv_wire_budget"
    duo.check_idle()


@pytest.mark.parametrize("budget", [None, 0.4, 1.0])
def test_where_nothing_crosses_it_changes_nothing(budget: float | None) -> None:
    """A decode worker that reads prompts itself computes the exact text, and no landing is told."""
    duo = _duo(num_prefill=0)
    text, told = duo.run(lambda: _heard(duo, _asked(budget)))
    assert (text, told) == (answer_in_one_piece(tiny_engine(num_blocks=128), PROMPT, NUM_TOKENS), [])


def test_an_answer_of_one_token_has_no_landing() -> None:
    """It comes from the prefill worker: nothing is shipped."""
    duo = _duo()
    assert duo.run(lambda: _heard(duo, _asked(None, num_tokens=1)))[1] == []


def test_choices_share_one_landing() -> None:
    """The prompt crosses once, and is told once, however many answers there are."""
    duo = _duo()
    asked = sampled(PROMPT, NUM_TOKENS, 3)

    async def work() -> list[KvLanded]:
        return [event async for event in events_of(duo.dispatcher.generate(asked)) if isinstance(event, KvLanded)]

    (told,) = duo.run(work)
    assert told.wire_bytes == duo.prefills[0].num_transfer_bytes


def test_a_continuation_keeps_the_budget(landed: Landings) -> None:
    """A worker dies in mid answer: the next ticket has the same rule, and both landings are told."""
    duo = _duo(num_decode=2)

    async def work() -> list[KvLanded]:
        told, num_tokens = [], 0
        async for event in events_of(duo.dispatcher.generate(_asked(0.5))):
            if isinstance(event, KvLanded):
                told.append(event)
            num_tokens += isinstance(event, GeneratedToken)
            if num_tokens == 3 and not duo.dead:
                duo.kill(landed[0][0].decode_worker.name)
                await duo.look_until_gone()
        assert num_tokens == NUM_TOKENS
        return told

    first, second = duo.run(work)
    assert [ticket.rule.budget for ticket, _ in landed] == [0.5, 0.5]
    assert [ticket.num_tokens for ticket, _ in landed] == [len(PROMPT), len(PROMPT) + 3]
    assert second.half_bytes > first.half_bytes
    assert continuation(_asked(0.5), [1, 2]).kv_wire_budget == 0.5


class _AnswerLost(InProcessPrefill):
    """A prefill worker whose connection breaks when all KV has crossed and its answer is due."""

    async def prefill(
        self, request: GenerateRequest, ticket: Ticket | None, deadline_s: float, plan: TransferPlan | None = None
    ) -> PrefillOutcome:
        await super().prefill(request, ticket, deadline_s, plan)
        while not self.duo.decodes[0].admission.num_landed_wire_bytes:  # noqa: ASYNC110 - the duo turns between
            await asyncio.sleep(0)
        raise WorkerUnavailable("the connection broke")


def test_a_prompt_read_again_after_it_has_landed_is_scored_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """What an earlier try has landed comes before the scores of the prompt; neither is taken for the other."""
    monkeypatch.setattr(duo_module, "InProcessPrefill", _AnswerLost)
    duo = _duo()

    async def work() -> tuple[GenerationStart, list[KvLanded]]:
        asked = replace(_asked(None, 100), num_prompt_logprobs=0)
        start, *events = [event async for event in events_of(duo.dispatcher.generate(asked))]
        assert isinstance(start, GenerationStart)
        return start, [event for event in events if isinstance(event, KvLanded)]

    start, told = duo.run(work)
    assert start.prompt_logprobs is not None
    assert len(start.prompt_logprobs) == 99
    assert len(told) == 1
    duo.check_idle()
