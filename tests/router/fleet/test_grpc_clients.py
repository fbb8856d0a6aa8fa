"""Workers and clients over real gRPC on loopback: every call, every error's class, broken streams."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from protocol.errors import (
    BadRequest,
    LayoutMismatch,
    NotConnected,
    PromptTooLong,
    StaleTicket,
    WorkerUnavailable,
)
from protocol.ids import WorkerId
from protocol.pace import Pace
from protocol.request import GeneratedToken
from router.fleet.grpc_clients import GrpcDecodeClient, GrpcPrefillClient
from tests.router.fleet.driving import (
    DEADLINE_S,
    NUM_TOKENS,
    PROMPT,
    VOCAB,
    Cluster,
    check_idle,
    drain,
    with_clients,
)
from tests.router.fleet.loopback import SLOT_BYTES, Node
from tests.support.duo import greedy
from tests.support.inboxes import next_token
from tests.support.polling import poll_until

pytestmark = pytest.mark.timeout(60)


def test_a_request_call_by_call(prefill: Node, decode: Node, expected: list[int]) -> None:
    """Describe, Status, Connect, Reserve, Prefill, Decode and Tokens, as the dispatcher uses them."""

    async def work(p: GrpcPrefillClient, d: GrpcDecodeClient) -> list[int]:
        assert (await p.describe()).worker == prefill.identity
        assert (await d.describe()).capacity_tokens == decode.decode.pool.num_blocks * 16
        reply = await p.connect(decode.target)
        assert reply.bytes_per_second > 0
        assert reply.decode_worker.name == "decode-0"
        asked = greedy(PROMPT, NUM_TOKENS)
        inbox = d.open(asked.request_id, DEADLINE_S)
        ticket = await d.reserve(asked, prefill.identity, DEADLINE_S)
        assert ticket.num_tokens == len(PROMPT)
        outcome = await p.prefill(asked, ticket, DEADLINE_S)
        assert outcome.num_cached_tokens == 0
        await d.decode(ticket, outcome.first_tokens)
        tokens = [outcome.first_tokens[0].token_id]
        while (token := await next_token(inbox)).finish is None:
            tokens.append(token.token_id)
        status = await d.status()
        assert status.num_remote_prefill_tokens >= len(PROMPT)
        assert status.num_local_prefill_tokens == 0
        assert (await p.status()).num_local_prefill_tokens == len(PROMPT)
        return [*tokens, token.token_id]

    assert with_clients(prefill, decode, work) == expected
    check_idle(prefill, decode)


def test_another_pace_crosses_where_there_is_a_stream(prefill: Node, decode: Node) -> None:
    """Without one the worker holds nothing of this router, and is told nothing; no answer is waited for."""
    told: list[tuple[str, Pace]] = []
    prefill.prefill.set_pace = lambda request_id, pace: told.append((request_id, pace))  # type: ignore[method-assign]

    async def work(p: GrpcPrefillClient, d: GrpcDecodeClient) -> None:
        p.set_pace("request-1", Pace(1.0, 2.0, True))
        await p.cancel("nobody")
        p.set_pace("request-2", Pace(3.0, 4.0, False))
        await p.cancel("nobody")

    with_clients(prefill, decode, work)
    assert told == [("request-2", Pace(3.0, 4.0, False))]


def test_generate_and_cancel(prefill: Node, decode: Node, expected: list[int]) -> None:
    """A decode worker alone, and an end in the middle: cancelling what is unknown is harmless."""

    async def work(p: GrpcPrefillClient, d: GrpcDecodeClient) -> list[int]:
        asked = greedy(PROMPT, 400)
        inbox = d.open(asked.request_id, DEADLINE_S)
        await d.generate(asked, DEADLINE_S)
        tokens = [(await next_token(inbox)).token_id for _ in range(NUM_TOKENS)]
        await d.cancel(asked.request_id)
        await d.cancel(asked.request_id)
        await p.cancel(asked.request_id)
        return tokens

    assert with_clients(prefill, decode, work) == expected
    check_idle(prefill, decode)


def test_errors_cross_with_their_class(prefill: Node, decode: Node) -> None:
    """What a worker raises is what its client raises, with the sentence."""

    async def work(p: GrpcPrefillClient, d: GrpcDecodeClient) -> None:
        asked = greedy(PROMPT, NUM_TOKENS)
        with pytest.raises(NotConnected, match="prefill-0"):
            await d.reserve(asked, prefill.identity, DEADLINE_S)
        with pytest.raises(PromptTooLong, match="10070"):
            await d.generate(greedy(PROMPT, 10_000), DEADLINE_S)
        with pytest.raises(BadRequest, match="vocabulary"):
            await d.generate(replace(asked, prompt_token_ids=(VOCAB,)), DEADLINE_S)
        with pytest.raises(BadRequest, match="vocabulary"):
            await p.prefill(replace(asked, prompt_token_ids=(VOCAB,)), None, DEADLINE_S)
        with pytest.raises(BadRequest, match="hexadecimal"):
            await d.generate(replace(asked, request_id="nonsense"), DEADLINE_S)
        await p.connect(decode.target)
        ticket = await d.reserve(asked, prefill.identity, DEADLINE_S)
        inbox = d.open(asked.request_id, DEADLINE_S)
        await d.decode(replace(ticket, generation=10**6), [GeneratedToken(asked.request_id, 0, 5)])
        with pytest.raises(StaleTicket):
            await next_token(inbox)
        with pytest.raises(StaleTicket):
            await p.prefill(asked, replace(ticket, prefill_worker=WorkerId.fresh("prefill-0")), DEADLINE_S)
        await d.cancel(asked.request_id)

    with_clients(prefill, decode, work)
    check_idle(prefill, decode)


def test_a_refused_handshake_leaves_no_slot_behind(cluster: Cluster, prefill: Node) -> None:
    """Whoever refuses, and however often it is tried: layouts differ, or slots that P cannot fill."""
    other = cluster.start("decode-0", num_hidden_layers=2)
    wide = cluster.start("decode-1", slot_bytes=2 * SLOT_BYTES)

    async def work(p: GrpcPrefillClient, d: GrpcDecodeClient) -> None:
        for node in (other, wide):
            for _ in range(3):
                with pytest.raises(LayoutMismatch):
                    await p.connect(node.target)

    with_clients(prefill, other, work)
    check_idle(prefill, other, wide)


def test_a_silent_target_is_unavailable(prefill: Node, decode: Node, cluster: Cluster) -> None:
    """Nobody listens there: `WorkerUnavailable` from every kind of call, and the process is known to be gone."""
    cluster.stop(decode)

    async def work(p: GrpcPrefillClient, d: GrpcDecodeClient) -> None:
        calls: list[Callable[[], Awaitable[object]]] = [
            d.describe,
            d.status,
            lambda: d.cancel("0" * 32),
            lambda: d.generate(greedy(PROMPT), DEADLINE_S),
            lambda: d.reserve(greedy(PROMPT), prefill.identity, DEADLINE_S),
            lambda: p.connect(decode.target),
        ]
        for call in calls:
            with pytest.raises(WorkerUnavailable):
                await call()
        assert await d.is_gone()
        assert not await p.is_gone()

    with_clients(prefill, decode, work)
    check_idle(prefill)


def test_a_router_that_goes_away_is_cleaned_up(prefill: Node, decode: Node) -> None:
    """Its stream breaks: what it had on the decode worker is cancelled, decoding or reserved, and nobody else's."""
    stays, goes = greedy(PROMPT, 400), greedy(PROMPT, 400)

    async def work(p: GrpcPrefillClient, d: GrpcDecodeClient) -> None:
        await p.connect(decode.target)
        other = GrpcDecodeClient(decode.target, "router-2")
        inbox = other.open(goes.request_id, DEADLINE_S)
        await other.generate(goes, DEADLINE_S)
        await next_token(inbox)
        await other.reserve(greedy(PROMPT), prefill.identity, DEADLINE_S)
        mine = d.open(stays.request_id, DEADLINE_S)
        await d.generate(stays, DEADLINE_S)
        await other.close()
        while goes.request_id in decode.decode.sequences:
            await next_token(mine)
        for _ in range(3):
            await next_token(mine)

    with_clients(prefill, decode, work)
    check_idle(prefill, decode)


def test_stopping_d_fails_who_waits(prefill: Node, decode: Node, cluster: Cluster) -> None:
    """A request in the middle of its answer and one that waits for its ticket both learn that the worker is gone."""

    async def work(p: GrpcPrefillClient, d: GrpcDecodeClient) -> None:
        await p.connect(decode.target)
        asked = greedy(PROMPT, 400)
        inbox = d.open(asked.request_id, DEADLINE_S)
        await d.generate(asked, DEADLINE_S)
        await next_token(inbox)
        slots = decode.decode.receiver.slots
        poll_until(lambda: slots.num_free == slots.num_slots)
        slots.lend(10**6, slots.num_slots)
        waiting = asyncio.ensure_future(d.reserve(greedy(PROMPT), prefill.identity, DEADLINE_S))
        while len(decode.decode.sequences) < 2:
            await next_token(inbox)
        await asyncio.to_thread(cluster.stop, decode)
        with pytest.raises(WorkerUnavailable):
            await drain(inbox)
        with pytest.raises(WorkerUnavailable):
            await waiting

    with_clients(prefill, decode, work)
