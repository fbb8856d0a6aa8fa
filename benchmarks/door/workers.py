"""A prefill or a decode worker without a model, as a gRPC server: it answers every call at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from benchmarks.door.answers import TokenSource
from benchmarks.door.workload import NUM_BLOCKS, describe
from protocol import kvferry_worker_pb2 as pb
from protocol import kvferry_worker_pb2_grpc as rpc
from protocol.description import description_to_wire
from protocol.errors import BadRequest, KvferryError
from protocol.ids import WorkerId
from protocol.rpc_errors import refuse
from protocol.rpc_server import RpcServer
from protocol.wire import worker_id_to_wire

HOST = "127.0.0.1"
ROUTER_KEY = "x-kvferry-router"
CACHED_TOKENS = 0

Context = grpc.aio.ServicerContext[Any, Any]


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

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelReply:
        """Ends a request, or one choice of it."""
        choice = request.choice if request.HasField("choice") else None
        return pb.CancelReply(was_known=self.source.cancel(request.request_id, choice))

    async def Forget(self, request: pb.ForgetRequest, context: Context) -> pb.ForgetReply:
        """There is nothing to forget."""
        return pb.ForgetReply()


class FakePrefill(_FakeWorker, rpc.PrefillWorkerServicer):
    """A prefill worker."""

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the services to a server."""
        rpc.add_WorkerServicer_to_server(self, server)
        rpc.add_PrefillWorkerServicer_to_server(self, server)

    async def Connect(self, request: pb.ConnectRequest, context: Context) -> pb.ConnectReply:
        """A link that is not there."""
        return pb.ConnectReply(transport="none", bytes_per_second=1e9)

    async def Prefill(self, request: pb.PrefillRequest, context: Context) -> pb.PrefillReply:
        """The first token of each choice."""
        first_tokens = self.source.first_tokens(request.generation)
        return pb.PrefillReply(first_tokens=first_tokens, num_cached_tokens=CACHED_TOKENS)


class FakeDecode(_FakeWorker, rpc.DecodeWorkerServicer):
    """A decode worker."""

    def register(self, server: grpc.aio.Server) -> None:
        """Adds the services to a server."""
        rpc.add_WorkerServicer_to_server(self, server)
        rpc.add_DecodeWorkerServicer_to_server(self, server)

    async def Reserve(self, request: pb.ReserveRequest, context: Context) -> pb.Ticket:
        """A ticket, whatever is asked for."""
        return self.source.reserve(request, self.wire_identity, await _router_of(context))

    async def Decode(self, request: pb.DecodeRequest, context: Context) -> pb.DecodeReply:
        """Begins to send the other tokens."""
        try:
            self.source.decode(request)
        except KvferryError as error:
            await refuse(context, error)
        return pb.DecodeReply()

    async def Generate(self, request: pb.Generation, context: Context) -> pb.GenerateReply:
        """Begins to send all tokens."""
        try:
            self.source.generate(request, await _router_of(context))
        except KvferryError as error:
            await refuse(context, error)
        return pb.GenerateReply()

    async def Tokens(self, request: pb.TokensRequest, context: Context) -> AsyncIterator[pb.TokenBatch]:
        """A router's batches."""
        queue = self.source.open_stream(request.router_id)
        await context.send_initial_metadata(())
        while True:
            yield await queue.get()


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


async def _router_of(context: Context) -> str:
    metadata = dict(context.invocation_metadata() or ())
    if ROUTER_KEY not in metadata:
        await refuse(context, BadRequest(f"the call carries no {ROUTER_KEY}"))
    return str(metadata[ROUTER_KEY])
