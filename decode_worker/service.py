"""The decode worker's request plane: protobuf in, plain calls on `DecodeWorker`, one stream per router out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from typing import Any, TypeVar

import grpc

from decode_worker.outlet import Failure, OutletBatch
from decode_worker.worker import DecodeWorker
from engine.prefix_cache.status import prefix_status
from protocol import kvferry_worker_pb2 as pb
from protocol import kvferry_worker_pb2_grpc as rpc
from protocol.description import WorkerDescription, description_to_wire
from protocol.errors import BadRequest, KvferryError
from protocol.ids import new_request_id
from protocol.order_session import OrderSession, router_of
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

LINK_TEST_CHUNKS = 16

Context = grpc.aio.ServicerContext[Any, Any]
Result = TypeVar("Result")


class DecodeService(rpc.WorkerServicer, rpc.DecodeWorkerServicer):
    """Serves one `DecodeWorker`. Calls and orders wait on its futures; none of them computes anything here."""

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
        lengths = worker.expected_output.error
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
            num_transfer_failures=admission.failed_transfers.num_all,
            transfer_failures_by_cause=admission.failed_transfers.by_cause,
            transfer_bytes=admission.num_transfer_bytes,
            transfer_bytes_by_tier=receiver.bytes_by_tier(),
            landed_wire_bytes=admission.num_landed_wire_bytes,
            landed_half_bytes=admission.num_landed_half_bytes,
            num_preemptions=worker.num_preemptions,
            num_local_prefill_tokens=worker.num_local_prefill_tokens,
            num_remote_prefill_tokens=admission.num_remote_prefill_tokens,
            prefix_cache=prefix_status(worker.prefixes),
            is_draining=worker.draining.is_draining,
            is_drained=worker.draining.is_drained,
            num_swaps=worker.num_swaps,
            output_length_error_octaves=lengths.octaves,
            output_length_covered_ratio=lengths.covered,
        )

    async def Forget(self, request: pb.ForgetRequest, context: Context) -> pb.ForgetReply:
        """Ends all landings of a prefill worker that is gone."""
        await asyncio.wrap_future(self._worker.receiver.forget(worker_id_from_wire(request.worker)))
        return pb.ForgetReply()

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainReply:
        """Takes nothing new from now on."""
        try:
            self._worker.drain(request.timeout_s, request.restart)
        except KvferryError as error:
            await refuse(context, error)
        return pb.DrainReply()

    async def Accept(self, request: pb.AcceptRequest, context: Context) -> pb.AcceptReply:
        """Lets a prefill worker write here, or refuses it with the reason; grants it a ticket to test the link with."""
        receiver = self._worker.receiver
        try:
            self._worker.draining.check()
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

    async def Orders(
        self, request_iterator: AsyncIterator[pb.OrderBatch], context: Context
    ) -> AsyncIterator[pb.Delivery]:
        """The stream of one router. When it ends, so do the router's requests: nobody would read their tokens."""
        try:
            session = OrderSession(router_of(context), self._take)
        except KvferryError as error:
            await refuse(context, error)

        def deliver(batch: OutletBatch) -> None:
            session.deliver(lambda delivery: _fill_delivery(delivery, batch))

        self._worker.outlets.subscribe(session.router_id, deliver)
        try:
            async for delivery in session.serve(request_iterator, context):
                yield delivery
        finally:
            if self._worker.news is not None:
                self._worker.news.unfollow(session.router_id, session.deliver_prefixes)
            if self._worker.outlets.unsubscribe(session.router_id, deliver):
                self._worker.cancel_router(session.router_id)

    def _take(self, session: OrderSession, order: pb.Order) -> None:
        """Carries out one order. Raises what it is refused with."""
        worker, number = self._worker, order.number
        match order.WhichOneof("what"):
            case "reserve":
                peer = worker_id_from_wire(order.reserve.prefill_worker)
                self._begin(
                    session,
                    number,
                    order.reserve.generation,
                    lambda generation: worker.reserve(generation, peer, session.router_id, order.deadline_s),
                    lambda answer, ticket: answer.ticket.CopyFrom(ticket_to_wire(ticket)),
                )
            case "generate":
                self._begin(
                    session,
                    number,
                    order.generate,
                    lambda generation: worker.generate(generation, session.router_id, order.deadline_s),
                    _fill_nothing,
                )
            case "decode":
                message = order.decode
                first_tokens = [token_from_wire(token) for token in message.first_tokens]
                session.start(
                    number,
                    message.request_id,
                    lambda: worker.decode(message.request_id, message.generation, first_tokens),
                    _fill_nothing,
                )
            case "cancel":
                request_id = order.cancel.request_id
                choice = order.cancel.choice if order.cancel.HasField("choice") else None
                session.after_check(
                    request_id,
                    lambda: session.start(number, request_id, lambda: worker.cancel(request_id, choice), _fill_nothing),
                )
            case "prefix_snapshot":
                if worker.news is None:
                    raise BadRequest(f"{worker.identity} keeps no prefixes")
                worker.news.follow(session.router_id, session.deliver_prefixes)
                worker.bell.set()
            case other:
                raise BadRequest(f"a decode worker does not take the order {other}")

    def _begin(
        self,
        session: OrderSession,
        number: int,
        message: pb.Generation,
        submit: Callable[[GenerateRequest], Future[Result]],
        fill: Callable[[pb.Answer, Result], None],
    ) -> None:
        """A request that is new here."""
        generation = generation_from_wire(message)
        engine = self._worker.engine
        session.start(
            number,
            generation.request_id,
            lambda: submit(generation),
            fill,
            # Compiled on no thread that others wait for; the step thread then finds it done.
            (lambda: engine.check_sampling(generation.sampling)) if generation.sampling.grammar else None,
        )


def _fill_nothing(answer: pb.Answer, result: object) -> None:
    """That it was done says all."""


def _failure_to_wire(failure: Failure) -> pb.RequestFailure:
    return pb.RequestFailure(request_id=failure.request_id, code=failure.error.code, message=failure.error.message)


def _fill_delivery(delivery: pb.Delivery, batch: OutletBatch) -> None:
    delivery.landings.extend(
        pb.Landing(request_id=one.request_id, wire_bytes=one.wire_bytes, half_bytes=one.half_bytes)
        for one in batch.landings
    )
    delivery.tokens.extend(map(token_to_wire, batch.tokens))
    delivery.lost_kv.extend(map(_failure_to_wire, batch.lost_kv))
    delivery.failures.extend(map(_failure_to_wire, batch.failures))
    delivery.prompts.extend(
        pb.PromptRead(
            request_id=one.request_id,
            num_cached_tokens=one.num_cached_tokens,
            scores=scores_to_wire(one.scores or ()),
        )
        for one in batch.prompts
    )
