"""The worker clients over gRPC: one channel a worker, and on it one stream of orders, answers and tokens."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import grpc

from protocol import kvferry_worker_pb2 as pb
from protocol import kvferry_worker_pb2_grpc as rpc
from protocol.description import WorkerDescription, description_from_wire
from protocol.errors import BadRequest, DeadlineExceeded, KvferryError, WorkerUnavailable, by_code
from protocol.ids import WorkerId
from protocol.order_session import ROUTER_KEY
from protocol.pace import Pace, TransferPlan, TransferProgress
from protocol.prefix_wire import NewsReader
from protocol.request import GeneratedToken, GenerateRequest
from protocol.rpc_channel import open_channel
from protocol.rpc_errors import from_rpc
from protocol.ticket import Ticket
from protocol.wire import (
    pace_to_wire,
    plan_to_wire,
    progress_from_wire,
    scores_from_wire,
    ticket_from_wire,
    ticket_to_wire,
    token_from_wire,
    token_to_wire,
    worker_id_to_wire,
)
from router.fleet.clients import KvLost, PrefillOutcome, PrefixNews, PromptRead, TokenInbox
from router.fleet.generation_messages import GenerationMessages
from router.fleet.order_stream import SWEEP_EVERY_S, OrderStream, is_being_cancelled, taken_out
from router.generation import KvLanded

log = logging.getLogger(__name__)

CALL_TIMEOUT_S = 5.0
"""For calls that a worker answers without waiting for anything."""
CONNECT_TIMEOUT_S = 60.0
GONE_TIMEOUT_S = 1.0
"""For a host to refuse a connection. One that says nothing is not known to have lost its process, and keeps others waiting."""


class GrpcWorkerClient:
    """The calls that both kinds of worker have. `messages` may be shared by the clients of one loop."""

    def __init__(
        self, target: str, router_id: str, token: str = "", messages: GenerationMessages | None = None
    ) -> None:
        self.target = target
        self._is_closed = False
        self._messages = messages or GenerationMessages()
        self._channel = open_channel(target, token)
        self._worker_stub = rpc.WorkerStub(self._channel)
        self._on_news: Callable[[PrefixNews], None] | None = None
        self._news = NewsReader()
        metadata = ((ROUTER_KEY, router_id),)
        self._orders = OrderStream(
            target, lambda: self._worker_stub.Orders(metadata=metadata), self._on_delivery, self._on_stream_end
        )

    async def describe(self) -> WorkerDescription:
        """Who answers at this target."""
        return description_from_wire(await self._call(self._worker_stub.Describe, pb.DescribeRequest()))

    async def status(self) -> pb.WorkerStatus:
        """Queue, blocks, slots and transfers."""
        reply: pb.WorkerStatus = await self._call(self._worker_stub.Status, pb.StatusRequest())
        return reply

    async def cancel(self, request_id: str, choice: int | None = None) -> None:
        """Ends a request, or one of its choices; unknown ones are ignored."""
        await self._ask_at_once(CALL_TIMEOUT_S, cancel=pb.CancelRequest(request_id=request_id, choice=choice))

    async def forget(self, worker: WorkerId) -> None:
        """Ends all transfers with a worker that is gone."""
        await self._call(self._worker_stub.Forget, pb.ForgetRequest(worker=worker_id_to_wire(worker)))

    async def drain(self, timeout_s: float, restart: bool) -> None:
        """Makes it take nothing new, and end what it has within `timeout_s`."""
        try:
            await self._worker_stub.Drain(pb.DrainRequest(timeout_s=timeout_s, restart=restart), timeout=CALL_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._silence(error) from error

    async def follow_prefixes(self, on_news: Callable[[PrefixNews], None]) -> None:
        """Has `on_news` called with what is cached there, then with its events, and with None when there are no more."""
        self._on_news, self._news = on_news, NewsReader()
        await self._orders.tell(prefix_snapshot=pb.PrefixSnapshotOrder())

    async def is_gone(self) -> bool:
        """Whether its host refuses the connection: nobody listens there any more, so that the process has ended."""
        host, _, port = self.target.rpartition(":")
        try:
            async with asyncio.timeout(GONE_TIMEOUT_S):
                _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
        except ConnectionRefusedError:
            return True
        except (OSError, TimeoutError):
            return False
        writer.close()
        return False

    def give_up(self) -> None:
        """Fails whatever waits for the worker."""
        error = WorkerUnavailable(f"worker at {self.target} does not answer")
        self._orders.give_up(error)
        self._on_end(error)

    async def close(self) -> None:
        """Ends the connection, and the router's requests there. Whatever is asked now or later fails with
        `WorkerUnavailable`.
        """
        self._is_closed = True
        await self._orders.close()
        await self._channel.close(grace=None)

    async def _call(self, method: Callable[..., Any], message: Any, timeout_s: float = CALL_TIMEOUT_S) -> Any:
        """The reply to a call that a worker answers without waiting: no answer in time is no worker."""
        if self._is_closed:
            raise taken_out(self.target)
        try:
            return await method(message, timeout=timeout_s)
        except grpc.RpcError as error:
            raise self._silence(error) from error
        except asyncio.CancelledError:
            if self._is_closed and not is_being_cancelled():
                raise taken_out(self.target) from None
            raise

    async def _ask_at_once(self, deadline_s: float, **what: Any) -> None:
        """An order that the worker answers without waiting: no answer in time is no worker. `deadline_s` is the request's."""
        try:
            async with asyncio.timeout(CALL_TIMEOUT_S):
                await self._orders.ask(deadline_s, **what)
        except TimeoutError:
            raise WorkerUnavailable(f"worker at {self.target} did not answer in time") from None

    def _on_delivery(self, delivery: pb.Delivery) -> None:
        """What comes besides answers."""
        if self._on_news is None:
            return
        for message in delivery.prefix:
            try:
                news = self._news.take(message)
            except BadRequest as error:
                log.warning("worker at %s: %s", self.target, error.message)
                self._on_news(None)
                continue
            if news is not None:
                self._on_news(news)

    def _on_stream_end(self, error: KvferryError) -> None:
        """The stream has ended, and with it all that waits for something on it."""
        if self._on_news is not None:
            self._on_news(None)
        self._on_end(error)

    def _on_end(self, error: KvferryError) -> None:
        """Whoever waits for a delivery learns that none comes."""

    def _error(self, error: grpc.RpcError) -> KvferryError:
        return from_rpc(error, f"worker at {self.target}")

    def _silence(self, error: grpc.RpcError) -> KvferryError:
        """The error of a call that a worker answers without waiting: no answer in time is no worker."""
        known = self._error(error)
        return WorkerUnavailable(known.message) if isinstance(known, DeadlineExceeded) else known


class GrpcPrefillClient(GrpcWorkerClient):
    """A prefill worker."""

    def __init__(
        self, target: str, router_id: str, token: str = "", messages: GenerationMessages | None = None
    ) -> None:
        super().__init__(target, router_id, token, messages)
        self._stub = rpc.PrefillWorkerStub(self._channel)
        self._watchers: dict[str, Callable[[TransferProgress], None]] = {}

    async def connect(self, decode_target: str) -> pb.ConnectReply:
        """Makes it shake hands with a decode worker and test the link."""
        message = pb.ConnectRequest(decode_target=decode_target)
        reply: pb.ConnectReply = await self._call(self._stub.Connect, message, CONNECT_TIMEOUT_S)
        return reply

    async def prefill(
        self, request: GenerateRequest, ticket: Ticket | None, deadline_s: float, plan: TransferPlan | None = None
    ) -> PrefillOutcome:
        """Has the prompt read, and its KV shipped when there is a ticket; with a plan, at its pace."""
        message = pb.PrefillRequest(
            generation=self._messages.of(request),
            ticket=ticket_to_wire(ticket) if ticket is not None else None,
            plan=plan_to_wire(plan) if plan is not None else None,
        )
        reply = (await self._orders.ask(deadline_s, prefill=message)).prefill
        scores = scores_from_wire(reply.prompt_scores) if request.num_prompt_logprobs is not None else None
        return PrefillOutcome(tuple(map(token_from_wire, reply.first_tokens)), reply.num_cached_tokens, scores)

    def set_pace(self, request_id: str, pace: Pace) -> None:
        """Gives a planned transfer another pace. Without a stream there is no request of this router on the worker."""
        self._orders.tell_if_open(pace=pb.PaceOrder(request_id=request_id, pace=pace_to_wire(pace)))

    def watch(self, request_id: str, on_progress: Callable[[TransferProgress], None]) -> None:
        """Has `on_progress` called with what the worker reports of a planned transfer, until `unwatch`."""
        self._watchers[request_id] = on_progress

    def unwatch(self, request_id: str) -> None:
        """Reports that still come are dropped."""
        self._watchers.pop(request_id, None)

    def _on_delivery(self, delivery: pb.Delivery) -> None:
        super()._on_delivery(delivery)
        for message in delivery.progress:
            if (on_progress := self._watchers.get(message.request_id)) is not None:
                on_progress(progress_from_wire(message))


class GrpcDecodeClient(GrpcWorkerClient):
    """A decode worker, whose stream brings all its tokens for this router."""

    def __init__(
        self, target: str, router_id: str, token: str = "", messages: GenerationMessages | None = None
    ) -> None:
        super().__init__(target, router_id, token, messages)
        self._inboxes: dict[str, TokenInbox] = {}
        self._sweeper: asyncio.TimerHandle | None = None

    def open(self, request_id: str, deadline_s: float) -> TokenInbox:
        """Opens the inbox, before `decode` or `generate` is called. After `deadline_s` it holds `DeadlineExceeded`."""
        inbox = self._inboxes[request_id] = TokenInbox(time.monotonic() + deadline_s)
        if self._sweeper is None:
            self._sweep()
        return inbox

    def close_inbox(self, request_id: str) -> None:
        """Forgets it; tokens that still come are dropped."""
        self._inboxes.pop(request_id, None)

    async def reserve(self, request: GenerateRequest, prefill_worker: WorkerId, deadline_s: float) -> Ticket:
        """Blocks and landing slots for the prompt's KV, once there are any."""
        message = pb.ReserveRequest(
            generation=self._messages.of(request), prefill_worker=worker_id_to_wire(prefill_worker)
        )
        return ticket_from_wire((await self._orders.ask(deadline_s, reserve=message)).ticket)

    async def decode(self, ticket: Ticket, first_tokens: Sequence[GeneratedToken]) -> None:
        """Starts decoding after the first tokens of the choices that go on, at least one. A refusal comes to the inbox."""
        message = pb.DecodeRequest(
            request_id=ticket.request_id,
            generation=ticket.generation,
            first_tokens=map(token_to_wire, first_tokens),
        )
        await self._orders.tell(decode=message)

    async def generate(self, request: GenerateRequest, deadline_s: float) -> None:
        """Has the prompt read and the answer generated there."""
        await self._ask_at_once(deadline_s, generate=self._messages.of(request))

    def _on_delivery(self, delivery: pb.Delivery) -> None:
        super()._on_delivery(delivery)
        for landing in delivery.landings:
            if (inbox := self._inboxes.get(landing.request_id)) is not None:
                inbox.put(KvLanded(landing.wire_bytes, landing.half_bytes))
        for lost in delivery.lost_kv:
            if (inbox := self._inboxes.get(lost.request_id)) is not None:
                inbox.put(KvLost(by_code(lost.code)(lost.message)))
        for prompt in delivery.prompts:
            if (inbox := self._inboxes.get(prompt.request_id)) is not None:
                inbox.put(PromptRead(prompt.num_cached_tokens, scores_from_wire(prompt.scores)))
        for message in delivery.tokens:
            if (inbox := self._inboxes.get(message.request_id)) is not None:
                inbox.put(token_from_wire(message))
        for failure in delivery.failures:
            if (inbox := self._inboxes.get(failure.request_id)) is not None:
                inbox.put(by_code(failure.code)(failure.message))

    def _on_end(self, error: KvferryError) -> None:
        for inbox in self._inboxes.values():
            inbox.put(error)

    def _sweep(self) -> None:
        """One timer for all inboxes, as for orders."""
        now = time.monotonic()
        for inbox in self._inboxes.values():
            if now > inbox.deadline:
                inbox.put(DeadlineExceeded(f"worker at {self.target} did not finish before the request's deadline"))
        self._sweeper = None
        if self._inboxes:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_EVERY_S, self._sweep)
