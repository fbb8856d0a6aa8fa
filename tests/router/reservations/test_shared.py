"""Routers that share a planner, over real gRPC on loopback: what they get, and what happens when one of them is gone."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from protocol import kvferry_planner_pb2 as pb
from protocol import kvferry_worker_pb2 as worker_pb
from protocol.errors import KvferryError, PlanRefused, WorkerUnavailable
from protocol.kvferry_planner_pb2_grpc import PlannerServicer, add_PlannerServicer_to_server
from router.reservations.contract import Reservations
from router.reservations.shared import SharedReservations
from tests.router.reservations.planners import DEADLINE_S, MB, SIGHT, Cable, ask, planner, router, until
from transfer.planner.network import NetworkSight

pytestmark = pytest.mark.timeout(60)
TOKEN = "a-token-of-this-cluster"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def _refusal(reservations: Reservations) -> KvferryError:
    with pytest.raises(KvferryError) as caught:
        await reservations.reserve(ask())
    return caught.value


async def test_two_routers_are_never_sold_the_same() -> None:
    """What both hold of a port is at most what it has, and both are shown the same network."""
    async with planner() as served, router(served.target, "r0") as one, router(served.target, "r1") as other:
        first = await one.reservations.reserve(ask("p0"))
        second = await other.reservations.reserve(ask("p1"))
        assert first.lease_id != second.lease_id
        assert second.pace.is_shared
        await until(lambda: len(one.reservations.use().leases) == 2)
        await until(lambda: len(other.reservations.use().leases) == 2)
        for each in (one, other):
            use = each.reservations.use()
            assert {lease.owner for lease in use.leases} == {"r0", "r1"}
            assert all(port.reserved_bytes_per_second <= port.bytes_per_second == 100 * MB for port in use.ports)
            assert sum(lease.pace.reserved_bytes_per_second for lease in use.leases) <= 100 * MB
            assert use.num_reserved == 2


async def test_clusters_that_share_a_planner_share_no_workers() -> None:
    """Both have a p0 and a d0: their ports are others, and each sees its own by plain names."""
    async with planner() as served, router(served.target, "r0", cluster="a") as one:
        await one.reservations.reserve(ask())
        async with router(served.target, "r1", cluster="b") as other:
            assert not (await other.reservations.reserve(ask())).pace.is_shared
            await until(lambda: len(other.reservations.use().leases) == 2)
            use = other.reservations.use()
            assert {(lease.owner, lease.source, lease.destination) for lease in use.leases} == {
                ("r0", "p0@a", "d0@a"),
                ("r1", "p0", "d0"),
            }
            assert {port.worker for port in use.ports} >= {"p0", "d1", "p0@a", "d1@a"}
        with pytest.raises(PlanRefused, match="p9@a"):
            await one.reservations.reserve(ask("p9"))


async def test_a_routers_paces_change_when_another_comes_and_goes() -> None:
    """It hears that its port is shared, and that it is not any more; progress and a release reach the planner."""
    async with planner() as served, router(served.target, "r0") as one:
        mine = await one.reservations.reserve(ask("p0", rate=20 * MB))
        assert not mine.pace.is_shared
        assert mine.pace.allowed_bytes_per_second == pytest.approx(100 * MB)
        async with router(served.target, "r1") as other:
            theirs = await other.reservations.reserve(ask("p1", rate=20 * MB))
            await until(lambda: mine.lease_id in one.paces and one.paces[mine.lease_id].is_shared)
            assert one.paces[mine.lease_id].allowed_bytes_per_second == pytest.approx(50 * MB, rel=0.1)
            other.reservations.release(theirs.lease_id)
            await until(lambda: not one.paces[mine.lease_id].is_shared)
            await other.reservations.reserve(ask("p1", rate=20 * MB))
            await until(lambda: one.paces[mine.lease_id].is_shared)
        await until(lambda: not one.paces[mine.lease_id].is_shared)  # the other said goodbye
        one.reservations.progress(mine.lease_id, 400 * MB)
        await until(lambda: [lease.acknowledged_bytes for lease in one.reservations.use().leases] == [400 * MB])


async def test_what_the_planner_refuses_is_raised_with_its_reason() -> None:
    """A worker that nobody sees, and a request without bytes, are `PlanRefused`; the stream goes on."""
    async with planner() as served, router(served.target, "r0") as one:
        with pytest.raises(PlanRefused, match="p9"):
            await one.reservations.reserve(ask("p9"))
        with pytest.raises(PlanRefused, match="nothing to transfer"):
            await one.reservations.reserve(ask(num_bytes=0))
        assert (await one.reservations.reserve(ask())).pace.reserved_bytes_per_second > 0


async def test_without_a_planner_a_request_does_not_wait() -> None:
    """`reserve` fails at once, the rest does nothing, and a planner that comes later is found."""
    port = _free_port()
    async with router(f"127.0.0.1:{port}", "r0", waits=False) as one:
        assert isinstance(await _refusal(one.reservations), WorkerUnavailable)
        one.reservations.progress(1, 5)
        one.reservations.release(1)
        assert one.reservations.use().ports == ()
        async with planner(port=port):
            await until(lambda: len(one.reservations.use().ports) == 4)
            await one.reservations.reserve(ask())


async def test_a_lease_that_nobody_waits_for_any_more_is_given_back() -> None:
    """A request that was cancelled while it asked leaves nothing behind."""
    async with planner() as served, router(served.target, "r0") as one:
        asking = asyncio.create_task(one.reservations.reserve(ask()))
        await asyncio.sleep(0)
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert asking.cancelled()
        await until(lambda: one.reservations.use().num_released == 1)
        assert served.desk.num_leases == 0


class _LatePlanner(PlannerServicer):
    """Grants every ask as lease 7, once it may, and notes what it was told."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.released: list[int] = []

    async def Session(
        self, requests: AsyncIterator[pb.RouterMessage], context: Any
    ) -> AsyncIterator[pb.PlannerMessage]:
        await context.send_initial_metadata(())
        async for message in requests:
            self.released += message.released_lease_ids
            if message.reserves:
                await self.may_answer.wait()
                yield pb.PlannerMessage(
                    grants=[
                        pb.Grant(number=each.number, lease_id=7, pace=worker_pb.Pace()) for each in message.reserves
                    ]
                )


async def test_a_planner_that_answers_too_late_is_not_waited_for() -> None:
    """The request goes on without a plan, and the lease that comes yet is given back."""
    late = _LatePlanner()
    server = grpc.aio.server()
    add_PlannerServicer_to_server(late, server)
    target = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with router(target, "r0", waits=False) as one:
            await until(lambda: one.reservations.is_open)
            assert "did not answer within" in (await _refusal(one.reservations)).message
            late.may_answer.set()
            await until(lambda: late.released == [7])
    finally:
        await server.stop(None)


async def test_a_router_that_comes_back_in_time_keeps_its_leases() -> None:
    """Those it gave back while it was away are released, the others were never sold again, and their paces are told anew."""
    async with planner() as served:
        cable = Cable(served.port)
        await cable.mend()
        async with router(cable.target, "r0") as one:
            kept = await one.reservations.reserve(ask("p0", rate=20 * MB))
            given_back = await one.reservations.reserve(ask("p0", "d1", rate=20 * MB))
            await cable.cut()
            await until(lambda: not one.reservations.is_open)
            assert isinstance(await _refusal(one.reservations), WorkerUnavailable)
            one.reservations.release(given_back.lease_id)
            one.reservations.observe(NetworkSight(SIGHT.pairs[:2]))
            assert served.desk.num_leases == 2
            one.paces.clear()
            await cable.mend()
            await until(lambda: kept.lease_id in one.paces)
            await until(lambda: [lease.lease_id for lease in one.reservations.use().leases] == [kept.lease_id])
            await until(lambda: {port.worker for port in one.reservations.use().ports} == {"p0", "d0", "d1"})
            assert one.reservations.use().num_expired == 0
        await cable.cut()


async def test_routers_find_a_planner_that_was_restarted() -> None:
    """By themselves; what they held is gone, and its ids are nobody else's."""
    async with planner() as first, router(first.target, "r0") as one, router(first.target, "r1") as other:
        old = await one.reservations.reserve(ask())
        await first.server.stop()
        await until(lambda: not one.reservations.is_open and not other.reservations.is_open)
        async with planner(port=first.port) as second:
            await until(lambda: len(one.reservations.use().ports) == len(other.reservations.use().ports) == 4)
            assert second.desk.num_leases == 0
            new = await other.reservations.reserve(ask())
            one.reservations.progress(old.lease_id, 1000 * MB)
            one.reservations.release(old.lease_id)
            await one.reservations.reserve(ask("p1", "d1"))  # on the same stream: what came before it was taken
            assert second.desk.num_leases == 2
            assert new.lease_id != old.lease_id


async def test_a_wrong_token_is_refused() -> None:
    """The router goes on without plans, and asking says why."""
    async with planner(token=TOKEN) as served:
        for token in ("", "another"):
            async with router(served.target, "r0", token, waits=False) as one:
                await until(lambda one=one: "token" in one.reservations.reason)  # type: ignore[misc]
                assert "token" in (await _refusal(one.reservations)).message
        async with router(served.target, "r0", TOKEN) as one:
            await one.reservations.reserve(ask())


async def test_goodbye_gives_all_back_at_once() -> None:
    """A router that closes leaves no lease behind, and closing twice, or before the start, harms nothing."""
    async with planner() as served:
        async with router(served.target, "r0") as one:
            await one.reservations.reserve(ask())
        assert served.desk.num_leases == 0
        await one.reservations.close()
        never_started: Reservations = SharedReservations(served.target, "r1")
        await never_started.close()
        assert isinstance(await _refusal(never_started), WorkerUnavailable)


async def test_many_ask_at_once() -> None:
    """Each is answered under its own number."""
    async with planner() as served, router(served.target, "r0") as one:
        names = [(f"p{number % 2}", f"d{number % 2}") for number in range(20)]
        async with asyncio.timeout(DEADLINE_S):
            found = await asyncio.gather(
                *(one.reservations.reserve(ask(*pair, num_bytes=MB, rate=MB)) for pair in names)
            )
        await until(lambda: len(one.reservations.use().leases) == 20)
        pairs = {lease.lease_id: (lease.source, lease.destination) for lease in one.reservations.use().leases}
        assert [pairs[each.lease_id] for each in found] == names
