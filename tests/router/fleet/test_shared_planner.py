"""Two routers over the same workers with one planner, everything over real gRPC on loopback."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from router.fleet.dispatch import Dispatcher
from router.fleet.fleet import Fleet, WorkerTarget
from router.reservations.shared import SharedReservations
from tests.router.fleet.driving import DEADLINE_S, answer, check_idle
from tests.router.fleet.loopback import Node
from tests.router.reservations.planners import planner, until

pytestmark = pytest.mark.timeout(60)


@asynccontextmanager
async def _router(target: str, name: str, nodes: list[Node]) -> AsyncIterator[tuple[Dispatcher, SharedReservations]]:
    """A router over the nodes that the planner knows already."""

    def full_name_of(worker: str) -> str:
        return fleet.full_name_of(worker)

    reservations = SharedReservations(target, name, full_name_of=full_name_of)
    fleet: Fleet = Fleet(reservations=reservations)
    dispatcher = Dispatcher(fleet, DEADLINE_S)
    try:
        await fleet.join([WorkerTarget(node.identity.name.split("-")[0], node.target) for node in nodes])
        await fleet.pause()
        await until(lambda: {port.worker for port in reservations.use().ports} == {"prefill-0", "decode-0"})
        yield dispatcher, reservations
    finally:
        await dispatcher.close()
        await fleet.close()


def test_routers_with_one_planner_plan_their_transfers(prefill: Node, decode: Node, expected: list[int]) -> None:
    """Both answer at a time, each transfer has a lease of the same two ports, and none is left."""

    async def run() -> None:
        async with planner() as served:
            nodes = [prefill, decode]
            async with (
                _router(served.target, "r0", nodes) as (one, seen),
                _router(served.target, "r1", nodes) as (other, _),
            ):
                answers = await asyncio.gather(answer(one), answer(other))
                assert answers[0] == answers[1] == expected
                await until(lambda: seen.use().num_released == 2)
                assert seen.use().num_reserved == 2
                assert served.desk.num_leases == 0

    asyncio.run(run())
    check_idle(prefill, decode)


def test_routers_answer_while_their_planner_is_away(prefill: Node, decode: Node, expected: list[int]) -> None:
    """The same text without a plan."""

    async def run() -> None:
        async with planner() as served, _router(served.target, "r0", [prefill, decode]) as (one, seen):
            await served.server.stop()
            await until(lambda: not seen.is_open)
            assert await answer(one) == expected
            assert seen.use().num_reserved == 0

    asyncio.run(run())
    check_idle(prefill, decode)
