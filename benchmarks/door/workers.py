"""A prefill or a decode worker without a model, as a gRPC server: it answers every call at once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import grpc

from benchmarks.door.answers import TokenSource
from benchmarks.door.workload import CHUNK_TOKENS, LAYOUT, NUM_BLOCKS, describe
from protocol import kvferry_worker_pb2 as pb
from protocol import kvferry_worker_pb2_grpc as rpc
from protocol.description import description_to_wire
from protocol.ids import WorkerId
from protocol.order_session import OrderSession, router_of
from protocol.rpc_server import RpcServer
from protocol.wire import worker_id_to_wire

HOST = "127.0.0.1"
CACHED_TOKENS = 0

Context = grpc.aio.ServicerContext[Any, Any]
Result = TypeVar("Result")


class _FakeWorker(rpc.WorkerServicer):
    """The calls that both kinds of worker have."""

    def __init__(self, role: str, source: TokenSource) -> None:
        self.role = role
        self.source = source
        self.identity = WorkerId.fresh(f"{role}-0")
        self.wire_identity = worker_id_to_wire(self.identity)
        self.target = ""

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.WorkerDescription:
        """Who this is."""
        return description_to_wire(describe(self.identity, self.role, self.target))

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.WorkerStatus:
        """Idle, always."""
        return pb.WorkerStatus(worker=self.wire_identity, num_blocks=NUM_BLOCKS, num_free_blocks=NUM_BLOCKS)

    async def Forget(self, request: pb.ForgetRequest, context: Context) -> pb.ForgetReply:
        """There is nothing to forget."""
        return pb.ForgetReply()

    async def Orders(
        self, request_iterator: AsyncIterator[pb.OrderBatch], context: Context
    ) -> AsyncIterator[pb.Delivery]:
        """A router's stream."""
        session = OrderSession(router_of(context), self._take)
        self.source.open_stream(
            session.router_id, lambda tokens: session.deliver(lambda delivery: delivery.tokens.extend(tokens))
        )
        async for delivery in session.serve(request_iterator, context):
            yield delivery

    def _take(self, session: OrderSession, order: pb.Order) -> None:
        """Carries an order out at once. Raises what it is refused with."""
        match order.WhichOneof("what"):
            case "prefill":
                reply = pb.PrefillReply(
                    first_tokens=self.source.first_tokens(order.prefill.generation), num_cached_tokens=CACHED_TOKENS
                )
                _answer(session, order, reply, lambda answer, reply: answer.prefill.CopyFrom(reply))
                if order.prefill.HasField("plan"):
                    session.deliver(_progress(order.prefill.generation.request_id))
            case "pace" | "prefix_snapshot":
                pass  # nothing is on its way, and nothing is kept
            case "reserve":
                ticket = self.source.reserve(order.reserve, self.wire_identity, session.router_id)
                _answer(session, order, ticket, lambda answer, ticket: answer.ticket.CopyFrom(ticket))
            case "decode":
                session.deliver(_landing(order.decode.request_id))
                self.source.decode(order.decode)
                session.done(order.number)
            case "generate":
                request_id = order.generate.request_id
                session.deliver(lambda delivery: delivery.prompts.extend([pb.PromptRead(request_id=request_id)]))
                self.source.generate(order.generate, session.router_id)
                session.done(order.number)
            case _:
                choice = order.cancel.choice if order.cancel.HasField("choice") else None
                self.source.cancel(order.cancel.request_id, choice)
                session.done(order.number)


def _progress(request_id: str) -> Callable[[pb.Delivery], None]:
    """What a worker reports of a planned transfer at least: that it has begun, and its end."""

    def fill(delivery: pb.Delivery) -> None:
        delivery.progress.add(request_id=request_id)
        delivery.progress.add(request_id=request_id, acknowledged_bytes=1, seconds=0.001, is_ended=True)

    return fill


def _landing(request_id: str) -> Callable[[pb.Delivery], None]:
    """What a decode worker says before the first token that it makes of KV that has crossed."""
    num_bytes = CHUNK_TOKENS * LAYOUT.bytes_per_token
    return lambda delivery: delivery.landings.extend(
        [pb.Landing(request_id=request_id, wire_bytes=num_bytes, half_bytes=num_bytes)]
    )


class FakePrefill(_FakeWorker, rpc.PrefillWorkerServicer):
    """A prefill worker."""

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the services to a server."""
        rpc.add_WorkerServicer_to_server(self, server)
        rpc.add_PrefillWorkerServicer_to_server(self, server)

    async def Connect(self, request: pb.ConnectRequest, context: Context) -> pb.ConnectReply:
        """A link that is not there."""
        return pb.ConnectReply(transport="none", bytes_per_second=1e9)


class FakeDecode(_FakeWorker, rpc.DecodeWorkerServicer):
    """A decode worker."""

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the services to a server."""
        rpc.add_WorkerServicer_to_server(self, server)
        rpc.add_DecodeWorkerServicer_to_server(self, server)


def fake_worker(role: str, token_id: int) -> FakePrefill | FakeDecode:
    """A worker of either kind. `role` is `prefill` or `decode`; all its tokens are `token_id`."""
    kind = FakePrefill if role == "prefill" else FakeDecode
    return kind(role, TokenSource(token_id))


class FakeServer:
    """One worker behind a port and a thread of its own."""

    def __init__(self, role: str, token_id: int) -> None:
        self._worker = fake_worker(role, token_id)
        self._server = RpcServer(self._worker.register, HOST)

    def start(self) -> str:
        """Serves; `host:port`."""
        self._worker.target = self._server.start()
        return self._worker.target

    def set_step(self, step_s: float) -> None:
        """From the next answer on: a token every `step_s` seconds; 0 for all at once."""
        self._worker.source.step_s = step_s

    def take_sent(self) -> dict[int, list[float]]:
        """When the paced tokens left, by the seed of their request."""
        return self._worker.source.take_sent()

    def stop(self) -> None:
        """Ends the server."""
        self._server.stop()


def _answer(session: OrderSession, order: pb.Order, result: Result, fill: Callable[[pb.Answer, Result], None]) -> None:
    """As a real worker answers, whose step thread holds the result's future."""
    future: Future[Result] = Future()
    session.start(order.number, "", lambda: future, fill)
    future.set_result(result)
