"""Draining over gRPC and HTTP: what the routers see of it, and who may ask for it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from protocol.errors import BadRequest, Draining, KvferryError, WorkerUnavailable
from router.fleet.dispatch import Dispatcher
from router.fleet.fleet import Fleet
from router.fleet.grpc_clients import GrpcDecodeClient, GrpcPrefillClient
from router.fleet.view import add_cluster_route
from router.http.operator_schemas import ClusterWorker
from tests.router.fleet.driving import Cluster, answer, with_clients, with_fleet
from tests.support.duo import greedy
from tests.support.http_front import FrontUnderTest, front_config
from tests.support.polling import poll_until

ENOUGH_S = 60.0
LOCAL = ("127.0.0.1", 40000)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Workers of one test."""
    made = Cluster()
    try:
        yield made
    finally:
        made.close()


def front_of(fleet: Fleet, **config: Any) -> FrontUnderTest:
    """A router's HTTP door with the cluster's routes."""
    front = FrontUnderTest(config=front_config(**config))
    add_cluster_route(front.app, fleet)
    return front


async def ask_to_drain(
    front: FrontUnderTest,
    name: str,
    body: Any = None,
    caller: tuple[str, int] = LOCAL,
    headers: dict[str, str] | None = None,
) -> httpx.Response:
    """One request from somewhere."""
    transport = httpx.ASGITransport(app=front.app, client=caller)
    async with httpx.AsyncClient(transport=transport, base_url="http://front") as client:
        content = json.dumps({"timeout_s": ENOUGH_S} if body is None else body)
        return await client.post(f"/cluster/workers/{name}/drain", content=content, headers=headers)


def test_a_draining_worker_says_so_and_refuses_over_grpc(cluster: Cluster) -> None:
    """Its status tells, a new prompt, request or link is refused by the error's own class, and an impossible time as such."""
    prefill, decode = cluster.start("prefill-0"), cluster.start("decode-0")

    async def work(p: GrpcPrefillClient, d: GrpcDecodeClient) -> list[type[BaseException]]:
        await p.connect(d.target)
        refusals: list[type[BaseException]] = []

        async def refused(call: Any) -> None:
            with pytest.raises(KvferryError) as caught:
                await call
            refusals.append(caught.type)

        await refused(d.drain(-1.0, restart=False))
        assert not (await d.status()).is_draining
        for client in (p, d):
            await client.drain(ENOUGH_S, restart=False)
            assert (await client.status()).is_draining
        await refused(p.prefill(greedy([1, 2, 3], 1), None, ENOUGH_S))
        await refused(d.generate(greedy([1, 2, 3]), ENOUGH_S))
        await refused(d.reserve(greedy([1, 2, 3]), prefill.identity, ENOUGH_S))
        await refused(p.connect(d.target))
        return refusals

    assert with_clients(prefill, decode, work) == [BadRequest, Draining, Draining, Draining, Draining]
    poll_until(lambda: decode.worker.draining.is_drained, what="a drained worker")


def test_a_worker_is_drained_over_http(cluster: Cluster) -> None:
    """The answer has the shape of a worker and tells that it drains; the fleet's answers come by way of the other."""
    nodes = [cluster.start("prefill-0"), cluster.start("decode-0"), cluster.start("decode-1")]

    async def work(fleet: Fleet, dispatcher: Dispatcher) -> httpx.Response:
        await fleet.link_all()
        expected = await answer(dispatcher)
        response = await ask_to_drain(front_of(fleet), "decode-0", {"timeout_s": ENOUGH_S, "restart": True})
        num_steps = nodes[1].worker.num_steps
        assert [await answer(dispatcher, cache_salt=str(salt)) for salt in range(3)] == [expected] * 3
        assert nodes[1].worker.num_steps == num_steps
        return response

    response = with_fleet(nodes, work)
    assert response.status_code == 202
    worker = ClusterWorker.model_validate_json(response.content)
    assert (worker.name, worker.status["is_draining"]) == ("decode-0", 1)
    order = nodes[1].worker.draining.order
    assert order is not None
    assert order.wants_restart
    poll_until(lambda: nodes[1].worker.draining.is_drained, what="a drained worker")


def test_a_worker_that_does_not_answer_cannot_be_drained(cluster: Cluster) -> None:
    """503, as for all that a worker does not do."""
    nodes = [cluster.start("decode-0")]

    async def work(fleet: Fleet, _: Dispatcher) -> httpx.Response:
        cluster.stop(nodes[0])
        return await ask_to_drain(front_of(fleet), "decode-0")

    response = with_fleet(nodes, work)
    assert (response.status_code, response.json()["error"]["code"]) == (503, WorkerUnavailable.code)


async def test_an_unknown_worker_is_not_found() -> None:
    """The answer names those that there are."""
    response = await ask_to_drain(front_of(Fleet()), "decode-7")
    assert (response.status_code, response.json()["error"]["code"]) == (404, "worker_not_found")


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1"])
async def test_this_machine_may_ask(host: str) -> None:
    """By any of its loopback addresses."""
    assert (await ask_to_drain(front_of(Fleet()), "decode-7", caller=(host, 1))).status_code == 404


@pytest.mark.parametrize(
    "host", ["10.0.0.5", "192.168.1.1", "2001:db8::1", "::ffff:10.0.0.5", "0.0.0.0", "", "elsewhere"]
)
async def test_nobody_else_may_ask(host: str) -> None:
    """Refused with what to do, whether or not there is such a worker."""
    response = await ask_to_drain(front_of(Fleet()), "decode-7", caller=(host, 1))
    assert (response.status_code, response.json()["error"]["code"]) == (403, "forbidden")
    assert "kvferry drain" in response.json()["error"]["message"]


@pytest.mark.parametrize("header", ["Origin", "Forwarded", "X-Forwarded-For", "Via"])
async def test_neither_web_pages_nor_proxies_may_ask(header: str) -> None:
    """Though they come from this machine."""
    response = await ask_to_drain(front_of(Fleet()), "decode-7", headers={header: "http://elsewhere"})
    assert response.status_code == 403


async def test_a_key_is_wanted_where_there_are_keys() -> None:
    """Besides being on this machine."""
    front = front_of(Fleet(), api_keys=("sk-right",))
    assert (await ask_to_drain(front, "decode-7")).status_code == 401
    shown = {"authorization": "Bearer sk-right"}
    assert (await ask_to_drain(front, "decode-7", headers=shown)).status_code == 404


@pytest.mark.parametrize("body", [{"timeout_s": -1}, {"timeout_s": 1e9}, {"timeout_s": "x"}, {"force": True}, []])
async def test_what_makes_no_sense_is_refused(body: Any) -> None:
    """Before any worker is looked for."""
    assert (await ask_to_drain(front_of(Fleet()), "decode-7", body)).status_code == 400
