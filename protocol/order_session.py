"""A worker's end of a router's stream of orders: orders in, answers and tokens out, as few messages as can be.

Knows nothing of what orders mean: a worker's service takes them and answers with futures.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from concurrent.futures import CancelledError, Future
from typing import Any, TypeVar

import grpc

from protocol import kvferry_worker_pb2 as pb
from protocol.errors import BadRequest, Cancelled, KvferryError
from protocol.prefix_events import EventBatch, PrefixSnapshot
from protocol.prefix_wire import news_to_wire
from protocol.rpc_errors import refuse
from protocol.unsent_news import UnsentNews

log = logging.getLogger(__name__)

ROUTER_KEY = "x-kvferry-router"
MAX_UNSENT = 4096
"""Deliveries of tokens (one a step) that a router may lag behind before its stream is ended, and its requests with it."""

Context = grpc.aio.ServicerContext[Any, Any]
Result = TypeVar("Result")


class OrderSession:
    """One router's stream. But for the two `deliver`, which any thread may call, everything belongs to the server's loop."""

    def __init__(self, router_id: str, take: Callable[[OrderSession, pb.Order], None]) -> None:
        self.router_id = router_id
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._pending = pb.Delivery()
        self._num_unsent = 0
        self._news = UnsentNews()
        self._wake = asyncio.Event()
        self._outstanding: dict[int, str] = {}
        self._checks: dict[str, asyncio.Task[None]] = {}

    @property
    def outstanding(self) -> list[str]:
        """Request ids of the orders that have no answer yet."""
        return list(self._outstanding.values())

    async def serve(self, batches: AsyncIterator[pb.OrderBatch], context: Context) -> AsyncIterator[pb.Delivery]:
        """Deliveries, until the router goes away or reads too slowly."""
        await context.send_initial_metadata(())  # tells the router that from now on nothing can be missed
        reading = asyncio.create_task(self._read(batches))
        reading.add_done_callback(lambda _: self._wake.set())
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                delivery, self._pending = self._pending, pb.Delivery()
                self._news.move_to(delivery)
                if self._news:
                    self._wake.set()
                is_overrun, self._num_unsent = self._num_unsent > MAX_UNSENT, 0
                yield delivery
                if is_overrun:
                    await refuse(context, KvferryError(f"router {self.router_id} reads its tokens too slowly"))
                if reading.done():
                    return
        finally:
            for task in (reading, *self._checks.values()):
                task.cancel()
            await asyncio.gather(reading, *self._checks.values(), return_exceptions=True)

    def start(
        self,
        number: int,
        request_id: str,
        submit: Callable[[], Future[Result]],
        fill: Callable[[pb.Answer, Result], None],
        check: Callable[[], None] | None = None,
    ) -> None:
        """Answers order `number` with what `submit` promises, once it is there; 0 wants no answer. `check` comes first, in
        a thread that nobody waits for; what it raises is the answer.
        """
        if number:
            self._outstanding[number] = request_id
        if check is None:
            self._follow(number, request_id, submit(), fill)
            return
        task = asyncio.create_task(
            self._checked(number, request_id, check, lambda: self._follow(number, request_id, submit(), fill))
        )
        self._checks[request_id] = task
        task.add_done_callback(lambda _: self._checks.pop(request_id, None))

    def after_check(self, request_id: str, work: Callable[[], None]) -> None:
        """Does `work` now, or as soon as the request's check has ended and the request has been submitted."""
        task = self._checks.get(request_id)
        if task is None:
            work()
        else:
            task.add_done_callback(lambda _: work())

    def done(self, number: int) -> None:
        """Answers an order that leaves nothing to say."""
        if not number:
            return
        self._outstanding.pop(number, None)
        self._pending.answers.add(number=number)
        self._wake.set()

    def refuse(self, number: int, request_id: str, error: BaseException) -> None:
        """Answers an order with an error; one without a number wants no answer, and its request ends with the error."""
        self._outstanding.pop(number, None)
        shown = _shown(error)
        if not number:
            self._pending.failures.add(request_id=request_id, code=shown.code, message=shown.message)
            self._wake.set()
            return
        failure = pb.OrderFailure(code=shown.code, message=shown.message, param=shown.param or "")
        self._pending.answers.add(number=number, failure=failure)
        self._wake.set()

    def deliver(self, fill: Callable[[pb.Delivery], None]) -> None:
        """Adds what a step produced. Never blocks."""
        # A loop that was closed meanwhile has nobody left to read; it must not end the step thread.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._extend, fill)

    def deliver_prefixes(self, news: PrefixSnapshot | EventBatch) -> None:
        """Adds what happened in the worker's prefix cache. Never blocks. A router that reads too slowly misses some of it."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._add_news, news)

    def _add_news(self, news: PrefixSnapshot | EventBatch) -> None:
        if not self._news.add(news_to_wire(news)):
            log.warning("router %s reads what is cached too slowly, and misses some", self.router_id)
        self._wake.set()

    def _extend(self, fill: Callable[[pb.Delivery], None]) -> None:
        if self._num_unsent <= MAX_UNSENT:
            fill(self._pending)
        self._num_unsent += 1
        self._wake.set()

    async def _read(self, batches: AsyncIterator[pb.OrderBatch]) -> None:
        async for batch in batches:
            for order in batch.orders:
                try:
                    self._take(self, order)
                except KvferryError as error:
                    self.refuse(order.number, order.decode.request_id, error)

    async def _checked(
        self, number: int, request_id: str, check: Callable[[], None], go_on: Callable[[], None]
    ) -> None:
        try:
            await asyncio.to_thread(check)
        except KvferryError as error:
            self.refuse(number, request_id, error)
            return
        go_on()

    def _follow(
        self, number: int, request_id: str, future: Future[Result], fill: Callable[[pb.Answer, Result], None]
    ) -> None:
        def tell(done: Future[Result]) -> None:
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._settle, number, request_id, done, fill)

        future.add_done_callback(tell)

    def _settle(
        self, number: int, request_id: str, done: Future[Result], fill: Callable[[pb.Answer, Result], None]
    ) -> None:
        try:
            result = done.result(0)
        except (Exception, CancelledError) as error:  # noqa: BLE001 - it is the answer, and told as such
            self.refuse(number, request_id, error)
            return
        if not number:
            return
        self._outstanding.pop(number, None)
        fill(self._pending.answers.add(number=number), result)
        self._wake.set()


def router_of(context: Context) -> str:
    """Which router calls. Raises `BadRequest` when it does not say so."""
    for key, value in context.invocation_metadata() or ():
        if key == ROUTER_KEY:
            return str(value)
    raise BadRequest(f"the call carries no {ROUTER_KEY}")


def _shown(error: BaseException) -> KvferryError:
    """The error as the router is told it. What was not raised on purpose is logged."""
    if isinstance(error, KvferryError):
        return error
    if isinstance(error, CancelledError):
        return Cancelled("the request was cancelled")
    log.error("an order failed inside the worker", exc_info=error)
    return KvferryError(f"the worker failed: {error}")
