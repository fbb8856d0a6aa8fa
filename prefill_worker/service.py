"""The prefill worker's request plane: protobuf in, plain calls on `PrefillWorker`, protobuf out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc

from engine.prefix_cache.status import prefix_status
from prefill_worker.sequence import PrefillAnswer
from prefill_worker.worker import PrefillWorker
from protocol import kvferry_worker_pb2 as pb
from protocol import kvferry_worker_pb2_grpc as rpc
from protocol.description import WorkerDescription, description_to_wire
from protocol.errors import BadRequest, DeadlineExceeded, KvferryError
from protocol.ids import WorkerId
from protocol.layout import check_compatible
from protocol.order_session import OrderSession, router_of
from protocol.pace import TransferProgress
from protocol.rpc_channel import open_channel
from protocol.rpc_errors import from_rpc, refuse
from protocol.wire import (
    generation_from_wire,
    layout_from_wire,
    layout_to_wire,
    pace_from_wire,
    plan_from_wire,
    progress_to_wire,
    scores_to_wire,
    ticket_from_wire,
    token_to_wire,
    worker_id_from_wire,
    worker_id_to_wire,
)
from transfer.address_wire import address_from_wire, address_to_wire
from transfer.planner.link import SLOW_BYTES_PER_SECOND

log = logging.getLogger(__name__)

HANDSHAKE_TIMEOUT_S = 30.0

Context = grpc.aio.ServicerContext[Any, Any]


class PrefillService(rpc.WorkerServicer, rpc.PrefillWorkerServicer):
    """Serves one `PrefillWorker`. Calls and orders wait on its futures; none of them computes anything here."""

    def __init__(self, worker: PrefillWorker, token: str = "") -> None:
        """`token` is the cluster's, for the decode workers that are called from here."""
        self.description: WorkerDescription | None = None
        self._worker = worker
        self._token = token

    def register(self, server: grpc.aio.Server) -> None:
        """Adds both services to a server."""
        rpc.add_WorkerServicer_to_server(self, server)
        rpc.add_PrefillWorkerServicer_to_server(self, server)

    async def Describe(self, request: pb.DescribeRequest, context: Context) -> pb.WorkerDescription:
        """Who this is."""
        if self.description is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the worker is still starting")
        return description_to_wire(self.description)

    async def Status(self, request: pb.StatusRequest, context: Context) -> pb.WorkerStatus:
        """Queue, blocks, slots and links, as they are now."""
        worker, sender = self._worker, self._worker.sender
        hidden = sender.hidden
        links = [
            pb.Link(
                peer=worker_id_to_wire(peer), transport=sender.protocols(), bytes_per_second=estimate.bytes_per_second
            )
            for peer, estimate in list(sender.links.items())
        ]
        return pb.WorkerStatus(
            worker=worker_id_to_wire(worker.identity),
            num_waiting=worker.num_waiting,
            num_running=worker.num_running,
            num_waiting_tokens=worker.num_waiting_tokens,
            num_blocks=worker.pool.num_blocks,
            num_free_blocks=worker.pool.num_free,
            num_slots=sender.slots.num_slots,
            num_free_slots=sender.slots.num_free,
            num_steps=worker.num_steps,
            num_transfers=worker.num_transfers,
            num_transfer_failures=worker.failed_transfers.num_all,
            transfer_failures_by_cause=worker.failed_transfers.by_cause,
            transfer_bytes=worker.num_transfer_bytes,
            transfer_bytes_by_tier=sender.bytes_by_tier(),
            num_local_prefill_tokens=worker.num_prefilled_tokens,
            hidden_bytes=hidden.num_hidden,
            acknowledged_bytes=hidden.num_acknowledged,
            links=links,
            prefix_cache=prefix_status(worker.prefixes),
            is_draining=worker.draining.is_draining,
            is_drained=worker.draining.is_drained,
        )

    async def Forget(self, request: pb.ForgetRequest, context: Context) -> pb.ForgetReply:
        """Ends all transfers to a decode worker that is gone."""
        await asyncio.wrap_future(self._worker.sender.forget(worker_id_from_wire(request.worker)))
        return pb.ForgetReply()

    async def Drain(self, request: pb.DrainRequest, context: Context) -> pb.DrainReply:
        """Takes nothing new from now on."""
        try:
            self._worker.drain(request.timeout_s, request.restart)
        except KvferryError as error:
            await refuse(context, error)
        return pb.DrainReply()

    async def Orders(
        self, request_iterator: AsyncIterator[pb.OrderBatch], context: Context
    ) -> AsyncIterator[pb.Delivery]:
        """The stream of one router. When it ends, so do the router's prompts: nobody waits for them."""
        try:
            session = OrderSession(router_of(context), self._take)
        except KvferryError as error:
            await refuse(context, error)
        try:
            async for delivery in session.serve(request_iterator, context):
                yield delivery
        finally:
            if self._worker.news is not None:
                self._worker.news.unfollow(session.router_id, session.deliver_prefixes)
            for request_id in session.outstanding:
                self._worker.cancel(request_id)

    def _take(self, session: OrderSession, order: pb.Order) -> None:
        """Carries out one order. Raises what it is refused with."""
        worker = self._worker
        match order.WhichOneof("what"):
            case "prefill":
                self._prefill(session, order)
            case "cancel":
                request_id = order.cancel.request_id
                choice = order.cancel.choice if order.cancel.HasField("choice") else None
                session.after_check(
                    request_id,
                    lambda: session.start(
                        order.number, request_id, lambda: worker.cancel(request_id, choice), _fill_nothing
                    ),
                )
            case "pace":
                request_id, pace = order.pace.request_id, pace_from_wire(order.pace.pace)
                session.after_check(request_id, lambda: worker.set_pace(request_id, pace))
                session.done(order.number)
            case "prefix_snapshot":
                if worker.news is None:
                    raise BadRequest(f"{worker.identity} keeps no prefixes")
                worker.news.follow(session.router_id, session.deliver_prefixes)
                worker.bell.set()
            case other:
                raise BadRequest(f"a prefill worker does not take the order {other}")

    def _prefill(self, session: OrderSession, order: pb.Order) -> None:
        """Reads a prompt; answered as soon as the first tokens are drawn, while the tail of the KV is on its way."""
        worker, message, deadline_s = self._worker, order.prefill, order.deadline_s
        generation = generation_from_wire(message.generation)
        ticket = ticket_from_wire(message.ticket) if message.HasField("ticket") else None
        plan = plan_from_wire(message.plan) if message.HasField("plan") else None
        session.start(
            order.number,
            generation.request_id,
            lambda: worker.submit(generation, ticket, deadline_s, plan, lambda progress: _deliver(session, progress)),
            _fill_answer,
            # Compiled on no thread that others wait for; the step thread then finds it done.
            (lambda: worker.engine.check_sampling(generation.sampling)) if generation.sampling.grammar else None,
        )

    async def Connect(self, request: pb.ConnectRequest, context: Context) -> pb.ConnectReply:
        """Shakes hands with a decode worker and tests the link with real chunks."""
        try:
            async with asyncio.timeout(HANDSHAKE_TIMEOUT_S):
                return await self._connect(request.decode_target)
        except TimeoutError:
            await refuse(
                context, DeadlineExceeded(f"no handshake with {request.decode_target} in {HANDSHAKE_TIMEOUT_S} s")
            )
        except grpc.RpcError as error:
            await refuse(context, from_rpc(error, f"decode worker at {request.decode_target}"))
        except KvferryError as error:
            await refuse(context, error)

    async def _connect(self, decode_target: str) -> pb.ConnectReply:
        worker, sender = self._worker, self._worker.sender
        worker.draining.check()
        async with open_channel(decode_target, self._token) as channel:
            request = pb.AcceptRequest(
                address=address_to_wire(sender.address()), layout=layout_to_wire(worker.engine.layout)
            )
            reply: pb.AcceptReply = await rpc.DecodeWorkerStub(channel).Accept(request, timeout=HANDSHAKE_TIMEOUT_S)
            peer = address_from_wire(reply.address)
            try:
                check_compatible(worker.engine.layout, layout_from_wire(reply.layout))
                await asyncio.wrap_future(sender.connect(peer))
            except KvferryError:
                if not sender.is_connected(peer.worker):
                    # No REVOKE can be heard here: what was granted for the link test has to be given back this way.
                    forget = pb.ForgetRequest(worker=worker_id_to_wire(worker.identity))
                    await rpc.WorkerStub(channel).Forget(forget, timeout=HANDSHAKE_TIMEOUT_S)
                raise
        rate = await self._test_link(peer.worker, reply.link_test)
        return pb.ConnectReply(
            decode_worker=worker_id_to_wire(peer.worker), transport=sender.protocols(), bytes_per_second=rate
        )

    async def _test_link(self, peer: WorkerId, message: pb.Ticket) -> float:
        ticket = ticket_from_wire(message)
        num_bytes = ticket.num_tokens * self._worker.engine.layout.elements_per_token * ticket.dtype.num_bytes
        start = time.monotonic()
        await asyncio.wrap_future(self._worker.test_link(ticket))
        rate = num_bytes / (time.monotonic() - start)
        is_slow = rate < SLOW_BYTES_PER_SECOND
        log.log(
            logging.WARNING if is_slow else logging.INFO,
            "link %s -> %s: %s, %.2f GB/s packed and verified over %.1f MB%s",
            *(self._worker.identity, peer, self._worker.sender.protocols(), rate / 1e9, num_bytes / 1e6),
            ": slow, look at the network and at UCX_TLS" if is_slow else "",
        )
        return rate


def _deliver(session: OrderSession, progress: TransferProgress) -> None:
    """Called on the thread that ships; what is done here is only to hand it on."""
    session.deliver(lambda delivery: delivery.progress.append(progress_to_wire(progress)))


def _fill_answer(answer: pb.Answer, done: PrefillAnswer) -> None:
    answer.prefill.CopyFrom(
        pb.PrefillReply(
            first_tokens=[token_to_wire(token) for token in done.first_tokens],
            num_cached_tokens=done.num_cached_tokens,
            prompt_scores=scores_to_wire(done.prompt_logprobs or ()),
        )
    )


def _fill_nothing(answer: pb.Answer, result: object) -> None:
    """That it was done says all."""
