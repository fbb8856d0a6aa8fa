"""A worker that comes back at another address while the fleet is looked after, and calls on a client that is closed."""

from __future__ import annotations

import asyncio

import pytest

from protocol.errors import WorkerUnavailable
from router.fleet.dispatch import Dispatcher
from router.fleet.fleet import Fleet, WorkerTarget
from router.fleet.grpc_clients import GrpcPrefillClient
from tests.router.fleet.driving import Cluster, answer, check_idle, with_fleet
from tests.router.fleet.loopback import Node
from tests.support.duo import greedy

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("name", ["prefill-0", "decode-0"])
def test_the_next_life_has_another_address(name: str, cluster: Cluster, expected: list[int]) -> None:
    """It is linked in the background, used, and nothing of the former is left with its peers."""
    nodes = {one: cluster.start(one) for one in ("prefill-0", "decode-0")}

    async def work(fleet: Fleet, dispatcher: Dispatcher) -> None:
        assert await answer(dispatcher) == expected
        await asyncio.to_thread(cluster.stop, nodes[name])
        nodes[name] = await asyncio.to_thread(cluster.start, name)
        target = WorkerTarget(name.split("-")[0], nodes[name].target, name, 1, has_seen_end=True)
        await fleet.join([target], waits_for_links=False)
        while not fleet.prefills["prefill-0"].links:
            await fleet.look()
        assert [one.description.worker for one in fleet.members] == [one.identity for one in nodes.values()]
        assert await answer(dispatcher, cache_salt="again") == expected

    with_fleet(list(nodes.values()), work)
    assert nodes["decode-0"].decode.num_local_prefill_tokens == 0
    check_idle(*nodes.values())


@pytest.mark.parametrize("is_under_way", [False, True])
def test_a_closed_client_fails_calls_as_one_of_a_worker_that_is_gone(is_under_way: bool, prefill: Node) -> None:
    """Whether they are made later or were waiting: no task takes it for its own cancellation."""

    async def work() -> None:
        client = GrpcPrefillClient(prefill.target, "router-1")
        held = prefill.prefill.pool.allocate(prefill.prefill.pool.num_free)
        assert held
        waiting = asyncio.ensure_future(client.prefill(greedy([1, 2, 3]), None, 30.0))
        while is_under_way and not prefill.prefill.num_waiting:
            await client.status()
        asked = asyncio.ensure_future(client.status())
        await client.close()
        for call in (waiting, client.status(), client.cancel("an id"), client.prefill(greedy([1]), None, 30.0)):
            with pytest.raises(WorkerUnavailable):
                await call
        (last,) = await asyncio.gather(asked, return_exceptions=True)
        assert not isinstance(last, asyncio.CancelledError)

    asyncio.run(work())
