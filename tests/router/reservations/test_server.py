"""The planner's server, with routers that say what they should not, or nothing at all, over real gRPC on loopback."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from grpc_health.v1.health_pb2_grpc import HealthStub

from protocol import kvferry_planner_pb2 as pb
from protocol.errors import BadRequest, Cancelled, ConfigError, DeadlineExceeded, Overloaded, WrongClusterToken
from protocol.kvferry_planner_pb2_grpc import PlannerStub
from protocol.order_session import ROUTER_KEY
from protocol.rpc_channel import open_channel
from protocol.rpc_errors import from_rpc
from router.reservations.server import SERVICE, PlannerAddress, PlannerServer, desk_for_sharing
from router.reservations.wire import ask_to_wire, sight_to_wire
from tests.router.reservations.planners import DEADLINE_S, MB, SIGHT, ServedPlanner, ask, planner, router, until
from transfer.planner.ledger import LeaseTerms

pytestmark = pytest.mark.timeout(60)

Call = grpc.aio.StreamStreamCall[pb.RouterMessage, pb.PlannerMessage]
HELLO = pb.RouterMessage(hello=pb.Hello(), sight=sight_to_wire(SIGHT))
"""How a router begins that sees something."""


@asynccontextmanager
async def stream(served: ServedPlanner, name: str = "raw", token: str = "") -> AsyncIterator[Call]:
    """A router's stream without a router: it says only what the test writes, no heartbeat either."""
    async with open_channel(served.target, token) as channel:
        call = PlannerStub(channel).Session(metadata=((ROUTER_KEY, name),) if name else (), timeout=DEADLINE_S)
        try:
            yield call
        finally:
            call.cancel()


async def _granted(call: Call) -> int:
    """Asks for a lease and returns its id."""
    await call.write(pb.RouterMessage(reserves=[ask_to_wire(3, ask())]))
    while True:
        message = await call.read()
        assert isinstance(message, pb.PlannerMessage)
        for grant in message.grants:
            assert grant.number == 3
            return grant.lease_id


async def _end(call: Call) -> Exception | None:
    """Reads to the end of a stream; the error that it ended with, None for none."""
    try:
        while isinstance(await call.read(), pb.PlannerMessage):
            pass
    except grpc.RpcError as error:
        return from_rpc(error, "the planner")
    return None


async def test_a_router_that_vanishes_loses_its_leases_in_time() -> None:
    """Without a word its leases expire, its workers are forgotten, and another router gets what it held."""
    async with planner(lease_s=0.3) as served, router(served.target, "r1") as other:
        async with stream(served) as call:
            await call.write(HELLO)
            await _granted(call)
            held = served.desk.num_leases
        assert held == 1
        await until(lambda: served.desk.num_leases == 0)
        await until(lambda: other.reservations.use().num_expired == 1)
        assert (await other.reservations.reserve(ask())).pace.is_shared is False


async def test_a_router_that_is_silent_is_cut_off() -> None:
    """Its stream is open but nothing comes: it ends with the reason, and so do its leases."""
    async with planner(lease_s=0.3) as served, stream(served) as call:
        await call.write(HELLO)
        await _granted(call)
        failure = await _end(call)
        assert isinstance(failure, DeadlineExceeded)
        await until(lambda: served.desk.num_leases == 0)


async def _beat(call: Call) -> None:
    while True:
        await call.write(pb.RouterMessage())
        await asyncio.sleep(0.02)


async def test_a_router_that_speaks_keeps_its_leases() -> None:
    """Empty messages are enough, for longer than a lease lives without them: the use of the network is told later than that."""
    async with planner(lease_s=0.2) as served, stream(served) as call:
        await call.write(HELLO)
        await _granted(call)
        beating = asyncio.create_task(_beat(call))
        message = await call.read()
        while isinstance(message, pb.PlannerMessage) and not message.use.leases:
            message = await call.read()
        beating.cancel()
        assert isinstance(message, pb.PlannerMessage)
        assert message.use.num_expired == 0
        assert served.desk.num_leases == 1


@pytest.mark.parametrize("reads", [True, False])
async def test_a_router_that_asks_more_than_it_reads_is_cut_off(reads: bool) -> None:
    """In one message or because it reads nothing at all; its leases end like those of one that vanished."""
    async with planner(lease_s=0.5) as served, stream(served) as call:
        await call.write(HELLO)
        await _granted(call)
        flood = pb.RouterMessage(reserves=[ask_to_wire(4, ask("x" * 100))] * (5000 if reads else 2000))
        if reads:
            await call.write(flood)
            assert isinstance(await _end(call), Overloaded)
        else:
            writing = asyncio.create_task(_write_on(call, flood))
            await until(lambda: served.desk.num_leases == 0)
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)
        await until(lambda: served.desk.num_leases == 0)


async def _write_on(call: Call, message: pb.RouterMessage) -> None:
    while True:
        await call.write(message)


async def test_another_stream_of_a_router_takes_the_place_of_the_first() -> None:
    """The first ends; leases that the second does not name are given back, since nobody knows of them."""
    async with planner() as served, stream(served) as first:
        await first.write(HELLO)
        kept, lost = await _granted(first), await _granted(first)
        async with stream(served) as second:
            await second.write(pb.RouterMessage(hello=pb.Hello(held_lease_ids=[kept, 12345])))
            assert isinstance(await _end(first), Cancelled)
            told = await second.read()
            assert isinstance(told, pb.PlannerMessage)
            assert [each.lease_id for each in told.paces] == [kept]
            held = served.desk.use(time.monotonic()).leases
            assert [lease.lease_id for lease in held] == [kept] != [lost]


async def test_goodbye_ends_the_stream_well() -> None:
    """The leases are given back before it ends."""
    async with planner() as served, stream(served) as call:
        await call.write(HELLO)
        await _granted(call)
        await call.write(pb.RouterMessage(is_leaving=True))
        assert await _end(call) is None
        assert served.desk.num_leases == 0


@pytest.mark.parametrize(
    "wrong",
    [
        pb.RouterMessage(sight=pb.NetworkSight(pairs=[pb.PairSight(source="p0")])),
        pb.RouterMessage(
            sight=pb.NetworkSight(
                pairs=[pb.PairSight(source="p", destination="d", tested_bytes_per_second=float("nan"))]
            )
        ),
    ],
)
async def test_a_message_that_cannot_be_ends_its_stream_only(wrong: pb.RouterMessage) -> None:
    """`BadRequest` says what is wrong; other routers notice nothing."""
    async with planner() as served, router(served.target, "r0") as one, stream(served) as call:
        await call.write(wrong)
        assert isinstance(await _end(call), BadRequest)
        await one.reservations.reserve(ask())


async def test_an_ask_that_cannot_be_is_refused_alone() -> None:
    """A start that is no time: the stream goes on."""
    async with planner() as served, stream(served) as call:
        bad = ask_to_wire(1, ask())
        bad.start_in_s = float("inf")
        await call.write(pb.RouterMessage(hello=HELLO.hello, sight=HELLO.sight, reserves=[bad]))
        message = await call.read()
        assert isinstance(message, pb.PlannerMessage)
        assert [(each.number, each.code) for each in message.refusals] == [(1, BadRequest.code)]
        await _granted(call)


async def test_a_router_must_say_who_it_is_and_know_the_token() -> None:
    """Streams without an id, or with another token, end before anything is read."""
    async with planner(token="a-token-of-this-cluster") as served:
        async with stream(served, name="", token="a-token-of-this-cluster") as nameless:
            assert isinstance(await _end(nameless), BadRequest)
        async with stream(served, token="another") as stranger:
            assert isinstance(await _end(stranger), WrongClusterToken)


async def test_health_is_served_as_usual() -> None:
    """The standard service says SERVING for the planner."""
    async with planner() as served, open_channel(served.target) as channel:
        reply = await HealthStub(channel).Check(HealthCheckRequest(service=SERVICE), timeout=DEADLINE_S)
        assert reply.status == HealthCheckResponse.SERVING


async def test_a_port_that_is_taken_is_told() -> None:
    """A second planner does not share it silently."""
    terms = LeaseTerms()
    async with planner() as served:
        second = PlannerServer(desk_for_sharing(terms), PlannerAddress(port=served.port), terms)
        with pytest.raises(ConfigError, match=r"in use.*--port"):
            await second.start()
        await second.stop()


async def test_lease_ids_are_of_one_life() -> None:
    """Two lives of a planner give other ids, which JSON can hold exactly."""
    first, second = desk_for_sharing(LeaseTerms()), desk_for_sharing(LeaseTerms())
    ids = []
    for desk in (first, second):
        desk.observe("r0", SIGHT, 0.0)
        ids.append(desk.reserve("r0", ask(num_bytes=MB), 0.0)[0])
    assert ids[0] != ids[1]
    assert all(0 < each < 2**53 for each in ids)
