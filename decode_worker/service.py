"""The decode worker's request plane: protobuf in, plain calls on `DecodeWorker`, one token stream per router out."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import grpc

from decode_worker.outlet import OutletBatch
from decode_worker.worker import DecodeWorker
from protocol import kvferry_worker_pb2 as pb
from protocol import kvferry_worker_pb2_grpc as rpc
from protocol.description import WorkerDescription, description_to_wire
from protocol.errors import BadRequest, KvferryError
from protocol.ids import new_request_id
from protocol.request import GenerateRequest
from protocol.rpc_errors import refuse
from protocol.wire import (
    generation_from_wire,
    layout_from_wire,
    layout_to_wire,
    scores_to_wire,
    ticket_to_wire,
    token_from_wire,
    token_to_wire,
    worker_id_from_wire,
    worker_id_to_wire,
)
from transfer.address_wire import address_from_wire, address_to_wire
from transfer.landing_contract import LandingRequest

log = logging.getLogger(__name__)

ROUTER_KEY = "x-kvferry-router"
LINK_TEST_CHUNKS = 16
MAX_STREAM_BATCHES = 4096
"""Steps that a router's stream may lag behind before it is ended, and its requests with it."""

Context = grpc.aio.ServicerContext[Any, Any]


class DecodeService(rpc.WorkerServicer, rpc.DecodeWorkerServicer):
    """Serves one `DecodeWorker`. Calls wait on its futures; none of them computes anything here."""

    def __init__(self, worker: DecodeWorker) -> None:
        self.description: WorkerDescription | None = None
        self._worker = worker

    def register(self, server: grpc.aio.Server) -> None:
        """Adds both services to a server."""
        rpc.add_WorkerServicer_to_server(self, server)
        rpc.add_DecodeWorkerServicer_to_server(self, server)

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.WorkerDescription:
        """Who this is."""
        if self.description is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the worker is still starting")
        return description_to_wire(self.description)

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.WorkerStatus:
        """Queue, blocks, slots and transfers, as they are now."""
        worker, receiver, admission = self._worker, self._worker.receiver, self._worker.admission
        return pb.WorkerStatus(
            worker=worker_id_to_wire(worker.identity),
            num_waiting=admission.num_waiting,
            num_running=admission.num_running,
            num_waiting_tokens=worker.num_waiting_tokens,
            num_blocks=worker.pool.num_blocks,
            num_free_blocks=worker.pool.num_free,
            num_slots=receiver.slots.num_slots,
            num_free_slots=receiver.slots.num_free,
            num_quarantined_slots=receiver.slots.num_quarantined,
            num_steps=worker.num_steps,
            num_transfers=admission.num_transfers,
            num_transfer_failures=admission.num_transfer_failures,
            transfer_bytes=admission.num_transfer_bytes,
            num_preemptions=worker.num_preemptions,
            num_local_prefill_tokens=worker.num_local_prefill_tokens,
            num_remote_prefill_tokens=admission.num_remote_prefill_tokens,
        )

    async def Cancel(self, request: pb.CancelRequest, context: Context) -> pb.CancelReply:
        """Ends a request, or one of its choices, wherever it stands."""
        choice = request.choice if request.HasField("choice") else None
        was_known = await asyncio.wrap_future(self._worker.cancel(request.request_id, choice))
        return pb.CancelReply(was_known=was_known)

    async def Forget(self, request: pb.ForgetRequest, context: Context) -> pb.ForgetReply:
        """Ends all landings of a prefill worker that is gone."""
        await asyncio.wrap_future(self._worker.receiver.forget(worker_id_from_wire(request.worker)))
        return pb.ForgetReply()

    async def Accept(self, request: pb.AcceptRequest, context: Context) -> pb.AcceptReply:
        """Lets a prefill worker write here, or refuses it with the reason; grants it a ticket to test the link with."""
        receiver = self._worker.receiver
        try:
            peer = address_from_wire(request.address)
            await asyncio.wrap_future(receiver.connect(peer, layout_from_wire(request.layout)))
            num_tokens = LINK_TEST_CHUNKS * receiver.chunk_tokens_from(peer.worker)
            test = LandingRequest(new_request_id(), peer.worker, first_token=0, num_tokens=num_tokens, block_ids=())
            ticket = self._worker.reserve_link_test(test)
        except KvferryError as error:
            log.warning("refused %s: %s", request.address.worker.name, error)
            await refuse(context, error)
        return pb.AcceptReply(
            address=address_to_wire(receiver.address()),
            layout=layout_to_wire(self._worker.engine.layout),
            link_test=ticket_to_wire(ticket),
        )

    async def Reserve(self, request: pb.ReserveRequest, context: Context) -> pb.Ticket:
        """Grants a ticket as soon as there are blocks and slots, within the request's deadline."""
        try:
            generation = await self._generation_of(request.generation)
            reserved = self._worker.reserve(
                generation,
                worker_id_from_wire(request.prefill_worker),
                _router_of(context),
                request.generation.deadline_s,
            )
            try:
                ticket = await asyncio.shield(asyncio.wrap_future(reserved))
            except asyncio.CancelledError:
                self._worker.cancel(generation.request_id)
                raise
        except KvferryError as error:
            await refuse(context, error)
        return ticket_to_wire(ticket)

    async def Decode(self, request: pb.DecodeRequest, context: Context) -> pb.DecodeReply:
        """Takes the first tokens of the choices that go on; the others go to the router's stream."""
        try:
            first_tokens = [token_from_wire(token) for token in request.first_tokens]
            await asyncio.wrap_future(self._worker.decode(request.request_id, request.generation, first_tokens))
        except KvferryError as error:
            await refuse(context, error)
        return pb.DecodeReply()

    async def Generate(self, request: pb.Generation, context: Context) -> pb.GenerateReply:
        """Queues a request whose prompt is read here."""
        try:
            generation = await self._generation_of(request)
            await asyncio.wrap_future(self._worker.generate(generation, _router_of(context), request.deadline_s))
        except KvferryError as error:
            await refuse(context, error)
        return pb.GenerateReply()

    async def _generation_of(self, message: pb.Generation) -> GenerateRequest:
        generation = generation_from_wire(message)
        if generation.sampling.grammar:
            # Compiled here, on no thread that others wait for; the step thread then finds it done.
            await asyncio.to_thread(self._worker.engine.check_sampling, generation.sampling)
        return generation

    async def Tokens(self, request: pb.TokensRequest, context: Context) -> AsyncIterator[pb.TokenBatch]:
        """The stream of one router. When it ends, so do the router's requests: nobody would read their tokens."""
        queue: asyncio.Queue[OutletBatch] = asyncio.Queue(MAX_STREAM_BATCHES)
        loop = asyncio.get_running_loop()
        has_overrun = asyncio.Event()

        def put(batch: OutletBatch) -> None:
            if queue.full():
                has_overrun.set()
            else:
                queue.put_nowait(batch)

        def deliver(batch: OutletBatch) -> None:
            # A loop that was closed meanwhile has nobody left to read; it must not end the step thread.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(put, batch)

        self._worker.outlets.subscribe(request.router_id, deliver)
        try:
            await context.send_initial_metadata(())  # tells the router that from now on no token can be missed
            while not has_overrun.is_set():
                yield _batch_to_wire(await queue.get())
            await refuse(context, KvferryError(f"router {request.router_id} reads its tokens too slowly"))
        finally:
            if self._worker.outlets.unsubscribe(request.router_id, deliver):
                self._worker.cancel_router(request.router_id)


def _batch_to_wire(batch: OutletBatch) -> pb.TokenBatch:
    failures = [
        pb.RequestFailure(request_id=one.request_id, code=one.error.code, message=one.error.message)
        for one in batch.failures
    ]
    prompts = [pb.PromptScores(request_id=one.request_id, scores=scores_to_wire(one.scores)) for one in batch.prompts]
    return pb.TokenBatch(tokens=[token_to_wire(token) for token in batch.tokens], failures=failures, prompts=prompts)


def _router_of(context: Context) -> str:
    for key, value in context.invocation_metadata() or ():
        if key == ROUTER_KEY:
            return str(value)
    raise BadRequest(f"the call carries no {ROUTER_KEY}")
