"""The worker clients over gRPC: one channel a worker, and one token stream from each decode worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import grpc

from protocol import kvferry_worker_pb2 as pb
from protocol import kvferry_worker_pb2_grpc as rpc
from protocol.description import WorkerDescription, description_from_wire
from protocol.errors import DeadlineExceeded, KvferryError, WorkerUnavailable, by_code
from protocol.ids import WorkerId
from protocol.request import GeneratedToken, GenerateRequest
from protocol.rpc_channel import open_channel
from protocol.rpc_errors import from_rpc
from protocol.ticket import Ticket
from protocol.wire import (
    generation_to_wire,
    scores_from_wire,
    ticket_from_wire,
    ticket_to_wire,
    token_from_wire,
    token_to_wire,
    worker_id_to_wire,
)
from router.fleet.clients import PrefillOutcome, PromptScored, TokenInbox

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0
"""For calls that a worker answers without waiting for anything."""
CONNECT_TIMEOUT_S = 60.0
STREAM_OPEN_TIMEOUT_S = 10.0
ROUTER_KEY = "x-kvferry-router"


class GrpcWorkerClient:
    """The calls that both kinds of worker have."""

    def __init__(self, target: str, router_id: str, token: str = "") -> None:
        self.target = target
        self._router_id = router_id
        self._metadata = ((ROUTER_KEY, router_id),)
        self._channel = open_channel(target, token)
        self._worker_stub = rpc.WorkerStub(self._channel)

    async def describe(self) -> WorkerDescription:
        """Who answers at this target."""
        try:
            reply = await self._worker_stub.Describe(pb.DescribeRequest(), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._silence(error) from error
        return description_from_wire(reply)

    async def status(self) -> pb.WorkerStatus:
        """Queue, blocks, slots and transfers."""
        try:
            reply: pb.WorkerStatus = await self._worker_stub.Status(pb.StatusRequest(), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._silence(error) from error
        return reply

    async def cancel(self, request_id: str, choice: int | None = None) -> None:
        """Ends a request, or one of its choices; unknown ones are ignored."""
        try:
            message = pb.CancelRequest(request_id=request_id, choice=choice)
            await self._worker_stub.Cancel(message, timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._silence(error) from error

    async def forget(self, worker: WorkerId) -> None:
        """Ends all transfers with a worker that is gone."""
        try:
            await self._worker_stub.Forget(pb.ForgetRequest(worker=worker_id_to_wire(worker)), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._silence(error) from error

    async def is_gone(self) -> bool:
        """Whether its host refuses the connection: nobody listens there any more, so that the process has ended."""
        host, _, port = self.target.rpartition(":")
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
        return False

    async def close(self) -> None:
        """Ends the connection."""
        await self._channel.close(grace=None)

    def _error(self, error: grpc.RpcError) -> KvferryError:
        return from_rpc(error, f"worker at {self.target}")

    def _silence(self, error: grpc.RpcError) -> KvferryError:
        """The error of a call that a worker answers without waiting: no answer in time is no worker."""
        known = self._error(error)
        return WorkerUnavailable(known.message) if isinstance(known, DeadlineExceeded) else known


class GrpcPrefillClient(GrpcWorkerClient):
    """A prefill worker."""

    def __init__(self, target: str, router_id: str, token: str = "") -> None:
        super().__init__(target, router_id, token)
        self._stub = rpc.PrefillWorkerStub(self._channel)

    async def connect(self, decode_target: str) -> pb.ConnectReply:
        """Makes it shake hands with a decode worker and test the link."""
        try:
            reply: pb.ConnectReply = await self._stub.Connect(
                pb.ConnectRequest(decode_target=decode_target), timeout=CONNECT_TIMEOUT_S
            )
        except grpc.RpcError as error:
            raise self._silence(error) from error
        return reply

    async def prefill(self, request: GenerateRequest, ticket: Ticket | None, deadline_s: float) -> PrefillOutcome:
        """Has the prompt read, and its KV shipped when there is a ticket."""
        message = pb.PrefillRequest(
            generation=generation_to_wire(request, deadline_s),
            ticket=ticket_to_wire(ticket) if ticket is not None else None,
        )
        try:
            reply = await self._stub.Prefill(message, timeout=deadline_s)
        except grpc.RpcError as error:
            raise self._error(error) from error
        scores = scores_from_wire(reply.prompt_scores) if request.num_prompt_logprobs is not None else None
        return PrefillOutcome(tuple(map(token_from_wire, reply.first_tokens)), reply.num_cached_tokens, scores)


class GrpcDecodeClient(GrpcWorkerClient):
    """A decode worker, with the stream that brings all its tokens for this router."""

    def __init__(self, target: str, router_id: str, token: str = "") -> None:
        super().__init__(target, router_id, token)
        self._stub = rpc.DecodeWorkerStub(self._channel)
        self._inboxes: dict[str, TokenInbox] = {}
        self._reader: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()

    def open(self, request_id: str) -> TokenInbox:
        """Opens the inbox, before `decode` or `generate` is called."""
        inbox = self._inboxes[request_id] = TokenInbox()
        return inbox

    def close_inbox(self, request_id: str) -> None:
        """Forgets it; tokens that still come are dropped."""
        self._inboxes.pop(request_id, None)

    async def reserve(self, request: GenerateRequest, prefill_worker: WorkerId, deadline_s: float) -> Ticket:
        """Blocks and landing slots for the prompt's KV, once there are any."""
        await self._ensure_stream()
        message = pb.ReserveRequest(
            generation=generation_to_wire(request, deadline_s), prefill_worker=worker_id_to_wire(prefill_worker)
        )
        try:
            return ticket_from_wire(await self._stub.Reserve(message, timeout=deadline_s, metadata=self._metadata))
        except grpc.RpcError as error:
            raise self._error(error) from error

    async def decode(self, ticket: Ticket, first_tokens: Sequence[GeneratedToken]) -> None:
        """Starts decoding after the first tokens of the choices that go on, at least one."""
        message = pb.DecodeRequest(
            request_id=ticket.request_id,
            generation=ticket.generation,
            first_tokens=map(token_to_wire, first_tokens),
        )
        try:
            await self._stub.Decode(message, timeout=CALL_TIMEOUT_S, metadata=self._metadata)
        except grpc.RpcError as error:
            raise self._silence(error) from error

    async def generate(self, request: GenerateRequest, deadline_s: float) -> None:
        """Has the prompt read and the answer generated there."""
        await self._ensure_stream()
        try:
            await self._stub.Generate(
                generation_to_wire(request, deadline_s), timeout=CALL_TIMEOUT_S, metadata=self._metadata
            )
        except grpc.RpcError as error:
            raise self._silence(error) from error

    async def close(self) -> None:
        """Ends the stream and the connection; requests that wait get an error."""
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        self._fail_all(WorkerUnavailable(f"worker at {self.target} was taken out"))
        await super().close()

    async def _ensure_stream(self) -> None:
        async with self._opening:
            if self._reader is not None and not self._reader.done():
                return
            call = self._stub.Tokens(pb.TokensRequest(router_id=self._router_id))
            try:
                async with asyncio.timeout(STREAM_OPEN_TIMEOUT_S):
                    await call.initial_metadata()
            except TimeoutError:
                call.cancel()
                raise WorkerUnavailable(f"worker at {self.target} opened no token stream in time") from None
            except grpc.RpcError as error:
                raise self._silence(error) from error
            self._reader = asyncio.create_task(self._read(call))

    async def _read(self, call: grpc.aio.UnaryStreamCall[pb.TokensRequest, pb.TokenBatch]) -> None:
        """Delivers tokens until the stream ends; whoever still waits then learns that the worker is gone."""
        failure: KvferryError = WorkerUnavailable(f"worker at {self.target} ended its token stream")
        try:
            async for batch in call:
                self._deliver(batch)
        except grpc.RpcError as error:
            failure = WorkerUnavailable(f"the token stream of {self.target} broke: {self._error(error).message}")
        finally:
            self._fail_all(failure)

    def _deliver(self, batch: pb.TokenBatch) -> None:
        for prompt in batch.prompts:
            inbox = self._inboxes.get(prompt.request_id)
            if inbox is not None:
                inbox.put(PromptScored(scores_from_wire(prompt.scores)))
        for message in batch.tokens:
            inbox = self._inboxes.get(message.request_id)
            if inbox is not None:
                inbox.put(token_from_wire(message))
        for failure in batch.failures:
            inbox = self._inboxes.get(failure.request_id)
            if inbox is not None:
                inbox.put(by_code(failure.code)(failure.message))

    def _fail_all(self, error: KvferryError) -> None:
        for inbox in self._inboxes.values():
            inbox.put(error)
