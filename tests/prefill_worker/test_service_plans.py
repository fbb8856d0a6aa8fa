"""A prefill worker's service over real gRPC: plans and paces in, progress out."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator

import pytest

from protocol import kvferry_worker_pb2 as pb
from protocol import kvferry_worker_pb2_grpc as rpc
from protocol.errors import BadRequest, KvferryError
from protocol.order_session import ROUTER_KEY
from protocol.pace import Pace, TransferPlan
from protocol.rpc_channel import open_channel
from protocol.wire import generation_to_wire, pace_to_wire, plan_to_wire, ticket_to_wire
from router.fleet.grpc_clients import GrpcDecodeClient, GrpcPrefillClient
from router.fleet.order_stream import OrderStream
from tests.router.fleet.driving import DEADLINE_S, PROMPT, Cluster, check_idle, with_clients
from tests.router.fleet.loopback import Node
from tests.support.duo import greedy

pytestmark = pytest.mark.timeout(60)

HALTED = Pace(0.0, 0.0, is_shared=True)
ALONE = Pace(0.0, 1e9, is_shared=False)


@pytest.fixture
def nodes() -> Iterator[tuple[Node, Node]]:
    """A prefill and a decode worker."""
    cluster = Cluster()
    yield cluster.start("prefill-0"), cluster.start("decode-0")
    cluster.close()


class RouterEnd:
    """A router's stream of orders to a prefill worker, and the progress that came over it."""

    def __init__(self, target: str) -> None:
        self._channel = open_channel(target)
        stub = rpc.WorkerStub(self._channel)
        self.progress: asyncio.Queue[pb.TransferProgress] = asyncio.Queue()
        self.failures: list[pb.RequestFailure] = []
        self.orders = OrderStream(
            target, lambda: stub.Orders(metadata=((ROUTER_KEY, "router-9"),)), self._on_delivery, self._on_end
        )

    async def next(self) -> pb.TransferProgress:
        """The next report."""
        return await asyncio.wait_for(self.progress.get(), 10.0)

    async def close(self) -> None:
        """Ends the stream."""
        await self.orders.close()
        await self._channel.close(None)

    def _on_delivery(self, delivery: pb.Delivery) -> None:
        for one in delivery.progress:
            self.progress.put_nowait(one)
        self.failures.extend(delivery.failures)

    def _on_end(self, error: KvferryError) -> None:
        return None


def planned(
    nodes: tuple[Node, Node], pace: Pace, work: Callable[[RouterEnd, str], Awaitable[None]]
) -> list[pb.RequestFailure]:
    """Has one planned prompt of several chunks read, then runs `work`; what failed meanwhile."""

    async def run(p: GrpcPrefillClient, d: GrpcDecodeClient) -> list[pb.RequestFailure]:
        await p.connect(nodes[1].target)
        asked = greedy(PROMPT, 4)
        d.open(asked.request_id, DEADLINE_S)
        ticket = await d.reserve(asked, nodes[0].identity, DEADLINE_S)
        assert ticket.num_chunks > 1
        end = RouterEnd(nodes[0].target)
        message = pb.PrefillRequest(
            generation=generation_to_wire(asked),
            ticket=ticket_to_wire(ticket),
            plan=plan_to_wire(TransferPlan(pace, 1e6)),
        )
        try:
            answer = await end.orders.ask(DEADLINE_S, prefill=message)
            assert answer.prefill.first_tokens
            await work(end, asked.request_id)
            await d.cancel(asked.request_id)
        finally:
            await end.close()
        return end.failures

    failures = with_clients(*nodes, run)
    check_idle(*nodes)
    return failures


def test_a_pace_order_sets_a_halted_transfer_going(nodes: tuple[Node, Node]) -> None:
    """The first report says that it began, the last that it ended; the order itself is not answered."""

    async def work(end: RouterEnd, request_id: str) -> None:
        first = await end.next()
        assert (first.request_id, first.acknowledged_bytes, first.is_ended) == (request_id, 0, False)
        await end.orders.tell(pace=pb.PaceOrder(request_id="nobody", pace=pace_to_wire(ALONE)))
        await end.orders.tell(pace=pb.PaceOrder(request_id=request_id, pace=pace_to_wire(ALONE)))
        reports = [await end.next()]
        while not reports[-1].is_ended:
            reports.append(await end.next())
        assert reports[-1].acknowledged_bytes > 0
        assert {one.request_id for one in reports} == {request_id}

    assert planned(nodes, HALTED, work) == []


def test_an_order_with_an_answer_is_answered(nodes: tuple[Node, Node]) -> None:
    """Whoever numbers a pace order is told that it was carried out, or that it is none."""

    async def work(end: RouterEnd, request_id: str) -> None:
        await end.orders.ask(DEADLINE_S, pace=pb.PaceOrder(request_id=request_id, pace=pace_to_wire(ALONE)))
        wrong = pb.Pace(reserved_bytes_per_second=2.0, allowed_bytes_per_second=1.0)
        with pytest.raises(BadRequest, match="allows less"):
            await end.orders.ask(DEADLINE_S, pace=pb.PaceOrder(request_id=request_id, pace=wrong))
        while not (await end.next()).is_ended:
            pass

    assert planned(nodes, ALONE, work) == []
