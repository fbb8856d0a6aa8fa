"""The worker clients of the duo: plain calls on workers of this process, with the failures that a connection would show."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from decode_worker.outlet import OutletBatch
from decode_worker.worker import DecodeWorker
from engine.prefix_cache.status import prefix_status
from prefill_worker.worker import PrefillWorker
from protocol import kvferry_worker_pb2 as pb
from protocol.description import WorkerDescription
from protocol.errors import DeadlineExceeded, WorkerUnavailable
from protocol.ids import WorkerId, new_request_id
from protocol.pace import Pace, TransferPlan, TransferProgress
from protocol.request import GeneratedToken, GenerateRequest
from protocol.ticket import Ticket
from protocol.wire import worker_id_to_wire
from router.fleet.clients import KvLost, PrefillOutcome, PrefixNews, PromptRead, TokenInbox
from router.generation import KvLanded
from transfer.failed_transfers import FailedTransfers
from transfer.landing_contract import LandingRequest

if TYPE_CHECKING:
    from tests.support.duo import Duo

Answer = TypeVar("Answer")


class _InProcess:
    """What both clients share. A dead worker answers as a connection to a dead process would, a stopped one not at all."""

    def __init__(self, duo: Duo, target: str) -> None:
        self.target = target
        self.duo = duo
        self._num_given_up = 0

    @property
    def either(self) -> PrefillWorker | DecodeWorker:
        """The worker, in its present life."""
        workers: list[PrefillWorker | DecodeWorker] = [*self.duo.prefills, *self.duo.decodes]
        return next(one for one in workers if one.identity.name == self.target)

    @property
    def failed_transfers(self) -> FailedTransfers:
        """The worker's counts of them."""
        either = self.either
        return (either if isinstance(either, PrefillWorker) else either.admission).failed_transfers

    async def describe(self) -> WorkerDescription:
        self.check_alive()
        return WorkerDescription(
            worker=self.either.identity,
            role=self.target.split("-")[0],
            layout=self.either.engine.layout,
            num_blocks=self.either.engine.num_blocks,
            max_context_tokens=self.either.engine.max_tokens_per_sequence,
            device="cpu",
            num_threads=1,
            cores=(),
            process_id=1,
            host="here",
            target=self.target,
            transport="local",
        )

    async def status(self) -> pb.WorkerStatus:
        self.check_alive()
        if self.target in self.duo.stopped:
            raise WorkerUnavailable(f"{self.target} does not answer in time")
        return pb.WorkerStatus(
            worker=worker_id_to_wire(self.either.identity),
            prefix_cache=prefix_status(self.either.prefixes),
            transfer_failures_by_cause=self.failed_transfers.by_cause,
            is_draining=self.either.draining.is_draining,
            is_drained=self.either.draining.is_drained,
        )

    async def drain(self, timeout_s: float, restart: bool) -> None:
        self.check_alive()
        self.either.drain(timeout_s, restart)

    async def follow_prefixes(self, on_news: Callable[[PrefixNews], None]) -> None:
        self.check_alive()
        news = self.either.news
        assert news is not None
        news.follow(self.duo.fleet.router_id, on_news)

    async def is_gone(self) -> bool:
        return self.target in self.duo.dead

    def give_up(self) -> None:
        self._num_given_up += 1

    async def close(self) -> None:
        return None

    def check_alive(self) -> None:
        if self.target in self.duo.dead:
            raise WorkerUnavailable(f"{self.target} does not answer")

    async def answer_of(self, waiting: Awaitable[Answer], deadline: float = math.inf) -> Answer:
        """Waits for a worker's answer; a worker that dies or is given up meanwhile breaks the call."""
        task = asyncio.ensure_future(waiting)
        life, num_given_up = self.either.identity, self._num_given_up
        try:
            self.check_alive()
            while not task.done():
                if self.target in self.duo.dead or self.either.identity != life or self._num_given_up != num_given_up:
                    raise WorkerUnavailable(f"{self.target} died or does not answer")
                if time.monotonic() > deadline:
                    raise DeadlineExceeded(f"{self.target} did not answer before the request's deadline")
                await asyncio.sleep(0)
            return task.result()
        finally:
            task.cancel()


class InProcessPrefill(_InProcess):
    """A prefill worker of the duo."""

    def __init__(self, duo: Duo, target: str) -> None:
        super().__init__(duo, target)
        self.watchers: dict[str, Callable[[TransferProgress], None]] = {}

    @property
    def _worker(self) -> PrefillWorker:
        return next(one for one in self.duo.prefills if one.identity.name == self.target)

    async def connect(self, decode_target: str) -> pb.ConnectReply:
        decode = next(one for one in self.duo.decodes if one.identity.name == decode_target)
        sender, receiver = self._worker.sender, decode.receiver
        layout = self._worker.engine.layout
        await self.answer_of(asyncio.wrap_future(receiver.connect(sender.address(), layout)))
        num_tokens = 2 * receiver.chunk_tokens_from(self._worker.identity)
        test = decode.reserve_link_test(LandingRequest(new_request_id(), self._worker.identity, 0, num_tokens, ()))
        await self.answer_of(asyncio.wrap_future(sender.connect(receiver.address())))
        await self.answer_of(asyncio.wrap_future(self._worker.test_link(test)))
        return pb.ConnectReply(
            decode_worker=worker_id_to_wire(decode.identity),
            transport="local",
            bytes_per_second=self.duo.options.link_bytes_per_second,
        )

    async def prefill(
        self, request: GenerateRequest, ticket: Ticket | None, deadline_s: float, plan: TransferPlan | None = None
    ) -> PrefillOutcome:
        if plan is not None:
            self.duo.told.setdefault(request.request_id, []).append(plan.pace)
        answered = self._worker.submit(request, ticket, deadline_s, plan, self.report)
        answer = await self.answer_of(asyncio.wrap_future(answered), time.monotonic() + deadline_s)
        return PrefillOutcome(answer.first_tokens, answer.num_cached_tokens, answer.prompt_logprobs)

    def set_pace(self, request_id: str, pace: Pace) -> None:
        self.duo.told.setdefault(request_id, []).append(pace)
        self._worker.set_pace(request_id, pace)

    def watch(self, request_id: str, on_progress: Callable[[TransferProgress], None]) -> None:
        self.watchers[request_id] = on_progress

    def unwatch(self, request_id: str) -> None:
        self.watchers.pop(request_id, None)

    def report(self, progress: TransferProgress) -> None:
        """What the worker says of a transfer, as its stream would bring it."""
        if (on_progress := self.watchers.get(progress.request_id)) is not None:
            on_progress(progress)

    async def cancel(self, request_id: str, choice: int | None = None) -> None:
        await self.answer_of(asyncio.wrap_future(self._worker.cancel(request_id, choice)))

    async def forget(self, worker: WorkerId) -> None:
        await self.answer_of(asyncio.wrap_future(self._worker.sender.forget(worker)))


class InProcessDecode(_InProcess):
    """A decode worker of the duo."""

    def __init__(self, duo: Duo, target: str, router_id: str) -> None:
        super().__init__(duo, target)
        self._router_id = router_id
        self._inboxes: dict[str, TokenInbox] = {}

    @property
    def _worker(self) -> DecodeWorker:
        return next(one for one in self.duo.decodes if one.identity.name == self.target)

    def open(self, request_id: str, deadline_s: float) -> TokenInbox:
        inbox = self._inboxes[request_id] = _MortalInbox(self, time.monotonic() + deadline_s)
        self._worker.outlets.subscribe(self._router_id, self._deliver)
        return inbox

    def give_up(self) -> None:
        super().give_up()
        for inbox in self._inboxes.values():
            inbox.put(WorkerUnavailable(f"{self.target} does not answer"))

    def close_inbox(self, request_id: str) -> None:
        self._inboxes.pop(request_id, None)

    async def reserve(self, request: GenerateRequest, prefill_worker: WorkerId, deadline_s: float) -> Ticket:
        reserved = self._worker.reserve(request, prefill_worker, self._router_id, deadline_s)
        return await self.answer_of(asyncio.wrap_future(reserved), time.monotonic() + deadline_s)

    async def decode(self, ticket: Ticket, first_tokens: Sequence[GeneratedToken]) -> None:
        started = self._worker.decode(ticket.request_id, ticket.generation, first_tokens)
        await self.answer_of(asyncio.wrap_future(started))

    async def generate(self, request: GenerateRequest, deadline_s: float) -> None:
        await self.answer_of(asyncio.wrap_future(self._worker.generate(request, self._router_id, deadline_s)))

    async def cancel(self, request_id: str, choice: int | None = None) -> None:
        await self.answer_of(asyncio.wrap_future(self._worker.cancel(request_id, choice)))

    async def forget(self, worker: WorkerId) -> None:
        await self.answer_of(asyncio.wrap_future(self._worker.receiver.forget(worker)))

    def _deliver(self, batch: OutletBatch) -> None:
        for landing in batch.landings:
            if landing.request_id in self._inboxes:
                self._inboxes[landing.request_id].put(KvLanded(landing.wire_bytes, landing.half_bytes))
        for lost in batch.lost_kv:
            if lost.request_id in self._inboxes:
                self._inboxes[lost.request_id].put(KvLost(lost.error))
        for prompt in batch.prompts:
            if prompt.request_id in self._inboxes:
                self._inboxes[prompt.request_id].put(PromptRead(prompt.num_cached_tokens, prompt.scores or ()))
        for token in batch.tokens:
            if token.request_id in self._inboxes:
                self._inboxes[token.request_id].put(token)
        for failure in batch.failures:
            if failure.request_id in self._inboxes:
                self._inboxes[failure.request_id].put(failure.error)


class _MortalInbox(TokenInbox):
    """An inbox whose stream breaks when its worker dies."""

    def __init__(self, client: InProcessDecode, deadline: float) -> None:
        super().__init__(deadline)
        self._client = client

    async def arrival(self) -> None:
        await self._client.answer_of(super().arrival(), self.deadline)
