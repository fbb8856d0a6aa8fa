"""A whole fleet over real gRPC on loopback: workers that stop and come back, clients that leave, many at once."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from decode_worker.worker import DecodeWorker
from prefill_worker.worker import PrefillWorker
from protocol.errors import BadRequest, Cancelled
from protocol.request import GeneratedToken
from router.fleet.dispatch import Dispatcher
from router.fleet.failures import FailureCause
from router.fleet.fleet import Fleet
from router.fleet.member import MAX_MISSED_PINGS
from router.fleet.planned_transfers import EndedTransfer
from router.generation import KvLanded
from router.reservations.own import OwnReservations
from tests.router.fleet.driving import (
    NUM_TOKENS,
    PROMPT,
    VOCAB,
    Cluster,
    answer,
    check_idle,
    with_fleet,
)
from tests.router.fleet.loopback import Node
from tests.support.duo import greedy
from tests.support.events import events_of
from tests.support.oracle import answer_in_one_piece, prompt_of
from tests.support.planned import OWNER, planner_desk
from tests.support.tiny_model import tiny_engine
from transfer.codec.budget import sixteen_bit_bytes

pytestmark = pytest.mark.timeout(60)


def test_stopping_p_moves_its_prompts(prefill: Node, decode: Node, cluster: Cluster, expected: list[int]) -> None:
    """A prompt that waits on a prefill worker which stops is read elsewhere: no client hears of it."""
    held = prefill.prefill.pool.allocate(prefill.prefill.pool.num_free)
    assert held

    async def work(fleet: Fleet, dispatcher: Dispatcher) -> list[int]:
        task = asyncio.ensure_future(answer(dispatcher))
        while not prefill.prefill.num_waiting:
            await fleet.look()
        await asyncio.to_thread(cluster.stop, prefill)
        tokens = await task
        for _ in range(MAX_MISSED_PINGS):
            await fleet.look_after()
        return tokens

    assert with_fleet([prefill, decode], work) == expected
    assert decode.decode.num_local_prefill_tokens == len(PROMPT)
    check_idle(decode)


def test_a_planned_transfer_is_reported_to_the_router(prefill: Node, decode: Node, expected: list[int]) -> None:
    """The plan crosses with the prompt, reports come back, and the lease is gone with the transfer."""
    reservations = OwnReservations(planner_desk(), OWNER)

    async def work(fleet: Fleet, dispatcher: Dispatcher) -> EndedTransfer:
        assert await answer(dispatcher) == expected
        assert reservations.use().leases == ()
        (ended,) = fleet.transfers.recent
        return ended

    ended = with_fleet([prefill, decode], work, reservations)
    assert ended.acknowledged_bytes >= ended.num_bytes > 0
    assert ended.achieved_bytes_per_second > 0
    assert ended.actual_end_s is not None
    check_idle(prefill, decode)


def test_what_crossed_is_told_to_the_router(prefill: Node, decode: Node) -> None:
    """Once for a request, among its events and in the worker's status: here the cache's own bytes, twice those of 16 bits."""

    async def work(fleet: Fleet, dispatcher: Dispatcher) -> list[KvLanded]:
        asked = replace(greedy(PROMPT, NUM_TOKENS), kv_wire_budget=1.0)
        told = [event async for event in events_of(dispatcher.generate(asked)) if isinstance(event, KvLanded)]
        await fleet.look()
        status = fleet.decodes["decode-0"].status
        assert [(status.landed_wire_bytes, status.landed_half_bytes)] == [
            (one.wire_bytes, one.half_bytes) for one in told
        ]
        shipped = fleet.prefills["prefill-0"].status
        assert shipped.transfer_bytes == shipped.acknowledged_bytes == status.landed_wire_bytes
        assert shipped.hidden_bytes <= shipped.acknowledged_bytes
        return told

    (told,) = with_fleet([prefill, decode], work)
    assert told.half_bytes == sixteen_bit_bytes(decode.decode.engine.layout, len(PROMPT))
    assert 2.0 < told.wire_bytes / told.half_bytes < 2.1
    check_idle(prefill, decode)


def test_kv_that_was_lost_is_told_to_the_router_with_its_reason(
    cluster: Cluster, prefill: Node, decode: Node, expected: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    """The answer is right, the reason is in the router's log, and both workers' statuses have the cause."""

    async def work(fleet: Fleet, dispatcher: Dispatcher) -> list[int]:
        cluster.fabric.faults.fail_write(num=1000)
        tokens = await answer(dispatcher)
        await fleet.look()
        for member in fleet.members:
            assert dict(member.status.transfer_failures_by_cause) == {"transfer_failed": 1}
        assert fleet.failures.by_cause[FailureCause.TRANSFER_FAILED] == 1
        return tokens

    assert with_fleet([prefill, decode], work) == expected
    assert decode.decode.num_local_prefill_tokens == len(PROMPT) + 1
    assert any("did not land: transfer_failed" in record.getMessage() for record in caplog.records)
    check_idle(prefill, decode)


def test_a_budget_that_a_worker_does_not_allow_is_the_callers_error(prefill: Node, decode: Node) -> None:
    """Its field and the worker's bounds cross with it, and no other worker is tried."""

    async def work(fleet: Fleet, dispatcher: Dispatcher) -> None:
        with pytest.raises(BadRequest, match="takes 1 to 1") as caught:
            await dispatcher.generate(replace(greedy(PROMPT), kv_wire_budget=0.5)).__anext__()
        assert caught.value.param == "kv_wire_budget"
        assert dispatcher.num_moves == 0

    with_fleet([prefill, decode], work)
    check_idle(prefill, decode)


@pytest.mark.parametrize("name", ["prefill-0", "decode-0"])
def test_a_restarted_worker_is_welcomed_back(name: str, cluster: Cluster, expected: list[int]) -> None:
    """At the same address with a new incarnation: it is linked anew and used, and nothing of its old life is left."""
    nodes = {one: cluster.start(one) for one in ("prefill-0", "decode-0")}

    async def work(fleet: Fleet, dispatcher: Dispatcher) -> None:
        assert await answer(dispatcher) == expected
        old = nodes[name]
        await asyncio.to_thread(cluster.stop, old)
        for _ in range(MAX_MISSED_PINGS):
            await fleet.look_after()
        nodes[name] = await asyncio.to_thread(lambda: cluster.start(name, port=old.port))
        member = next(one for one in fleet.members if one.name == name)
        while member.description.worker != nodes[name].identity or not fleet.prefills["prefill-0"].links:
            await fleet.look_after()
            await fleet.link_all()
        assert await answer(dispatcher, cache_salt="again") == expected

    with_fleet(list(nodes.values()), work)
    assert nodes["decode-0"].decode.num_local_prefill_tokens == 0
    check_idle(*nodes.values())


def test_a_cancelled_call_does_not_linger(prefill: Node, decode: Node) -> None:
    """A client that leaves while it waits for blocks, slots or its first token leaves nothing on either worker."""
    for place in ("reserve", "prefill", "stream"):
        pool = {"reserve": decode.worker.pool, "prefill": prefill.worker.pool}.get(place)
        held = pool.allocate(pool.num_free) if pool else []

        async def work(fleet: Fleet, dispatcher: Dispatcher, place: str = place) -> None:
            task = asyncio.ensure_future(answer(dispatcher, 400))
            worker = prefill.worker if place == "prefill" else decode.worker
            while not (worker.num_steps if place == "stream" else _num_waiting(worker)):
                await fleet.look()
            task.cancel()
            with pytest.raises((asyncio.CancelledError, Cancelled)):
                await task

        with_fleet([decode, prefill] if place == "reserve" else [prefill, decode], work)
        if pool:
            pool.release(held)
        check_idle(prefill, decode)


def _num_waiting(worker: PrefillWorker | DecodeWorker) -> int:
    return worker.admission.num_waiting if isinstance(worker, DecodeWorker) else worker.num_waiting


def test_many_over_the_real_wires(prefill: Node, decode: Node) -> None:
    """Thirty requests at once through threads and sockets, each equal to the model in one piece."""
    lengths = [1 + 5 * number for number in range(30)]
    oracle = tiny_engine()
    expected = [answer_in_one_piece(oracle, prompt_of(length, VOCAB), NUM_TOKENS) for length in lengths]

    async def work(fleet: Fleet, dispatcher: Dispatcher) -> list[list[int]]:
        async def one(length: int) -> list[int]:
            events = [
                event async for event in events_of(dispatcher.generate(greedy(prompt_of(length, VOCAB), NUM_TOKENS)))
            ]
            return [event.token_id for event in events if isinstance(event, GeneratedToken)]

        return await asyncio.gather(*map(one, lengths))

    assert with_fleet([prefill, decode], work) == expected
    assert decode.decode.num_local_prefill_tokens == 0
    check_idle(prefill, decode)
