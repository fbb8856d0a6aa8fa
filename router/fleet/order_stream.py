"""The router's end of a worker's stream of orders: all that is ready in one turn of the loop crosses in one message."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import grpc

from protocol import kvferry_worker_pb2 as pb
from protocol.errors import DeadlineExceeded, KvferryError, WorkerUnavailable, by_code
from protocol.rpc_errors import from_rpc

log = logging.getLogger(__name__)

OPEN_TIMEOUT_S = 10.0
SWEEP_EVERY_S = 0.1
"""How late a deadline may be noticed: one timer for all calls, since one for each would cost as much as the call."""
MAX_BATCH_BYTES = 4 << 20
"""A message holds one order at least, and no more once it is this large."""

Call = grpc.aio.StreamStreamCall[pb.OrderBatch, pb.Delivery]


@dataclass(slots=True)
class _Waiting:
    """An order whose answer has not come."""

    answered: asyncio.Future[pb.Answer]
    deadline: float

    def fail(self, error: KvferryError) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)


class OrderStream:
    """Opened with the first order, and again after it broke. Belongs to one loop.

    `on_delivery` is given every delivery, `on_end` why the stream ended.
    """

    def __init__(
        self,
        target: str,
        open_call: Callable[[], Call],
        on_delivery: Callable[[pb.Delivery], None],
        on_end: Callable[[KvferryError], None],
    ) -> None:
        self._target = target
        self._open_call = open_call
        self._on_delivery = on_delivery
        self._on_end = on_end
        self._opening = asyncio.Lock()
        self._tasks: tuple[asyncio.Task[None], ...] = ()
        self._is_open = False
        self._is_closed = False
        self._last_number = 0
        self._waiting: dict[int, _Waiting] = {}
        self._sweeper: asyncio.TimerHandle | None = None
        self._outgoing: list[pb.Order] = []
        self._wake = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether orders would go out without a new call."""
        return self._is_open

    async def ask(self, deadline_s: float, **what: Any) -> pb.Answer:
        """Sends an order (one field of `Order`) and waits for its answer.

        Raises the error that the worker answers with, `WorkerUnavailable` when the stream cannot be opened or breaks,
        `DeadlineExceeded` after `deadline_s`.
        """
        if not self._is_open:
            await self._open()
        self._last_number += 1
        number = self._last_number
        answered: asyncio.Future[pb.Answer] = asyncio.get_running_loop().create_future()
        self._waiting[number] = _Waiting(answered, time.monotonic() + deadline_s)
        if self._sweeper is None:
            self._sweep()
        self._outgoing.append(pb.Order(number=number, deadline_s=deadline_s, **what))
        self._wake.set()
        try:
            answer = await answered
        finally:
            self._waiting.pop(number, None)
        if answer.HasField("failure"):
            failure = answer.failure
            raise by_code(failure.code)(failure.message, param=failure.param or None)
        return answer

    async def tell(self, **what: Any) -> None:
        """Sends an order that wants no answer: if it fails, the request that it is about ends with the error.

        Raises `WorkerUnavailable` when the stream cannot be opened.
        """
        if not self._is_open:
            await self._open()
        self._outgoing.append(pb.Order(**what))
        self._wake.set()

    def tell_if_open(self, **what: Any) -> None:
        """As `tell`, without waiting: an order about a request that is there only while the stream is. Else nothing is sent."""
        if self._is_open:
            self._outgoing.append(pb.Order(**what))
            self._wake.set()

    def give_up(self, error: KvferryError) -> None:
        """Fails all that wait for an answer. The stream stays open."""
        for waiting in self._waiting.values():
            waiting.fail(error)

    async def close(self) -> None:
        """Ends the stream, and with it the router's requests on the worker."""
        self._is_closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._end(taken_out(self._target))

    async def _open(self) -> None:
        async with self._opening:
            if self._is_open:
                return
            await asyncio.gather(*self._tasks, return_exceptions=True)
            if self._is_closed:
                raise taken_out(self._target)
            call = self._open_call()
            try:
                async with asyncio.timeout(OPEN_TIMEOUT_S):
                    await call.initial_metadata()
            except TimeoutError:
                call.cancel()
                raise WorkerUnavailable(f"worker at {self._target} opened no stream in time") from None
            except grpc.RpcError as error:
                raise from_rpc(error, f"worker at {self._target}") from error
            except asyncio.CancelledError:
                if self._is_closed and not is_being_cancelled():
                    raise taken_out(self._target) from None
                raise
            self._is_open = True
            self._tasks = (asyncio.create_task(self._write(call)), asyncio.create_task(self._read(call)))

    async def _write(self, call: Call) -> None:
        try:
            while True:
                await self._wake.wait()
                await asyncio.sleep(0)  # whoever else is ready in this turn sends along
                self._wake.clear()
                while self._outgoing:
                    await call.write(pb.OrderBatch(orders=self._next_orders()))
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            log.debug("no more orders to %s: %s", self._target, error)  # the reader tells why the stream ended

    def _next_orders(self) -> list[pb.Order]:
        num_bytes = num_orders = 0
        while num_orders < len(self._outgoing) and num_bytes < MAX_BATCH_BYTES:
            num_bytes += self._outgoing[num_orders].ByteSize()
            num_orders += 1
        orders, self._outgoing = self._outgoing[:num_orders], self._outgoing[num_orders:]
        return orders

    async def _read(self, call: Call) -> None:
        """Hands deliveries on until the stream ends; whoever still waits then learns that the worker is gone."""
        failure = WorkerUnavailable(f"worker at {self._target} ended its stream")
        try:
            async for delivery in call:
                for answer in delivery.answers:
                    waiting = self._waiting.get(answer.number)
                    if waiting is not None and not waiting.answered.done():
                        waiting.answered.set_result(answer)
                self._on_delivery(delivery)
        except grpc.RpcError as error:
            reason = from_rpc(error, f"worker at {self._target}").message
            failure = WorkerUnavailable(f"the stream of {self._target} broke: {reason}")
        finally:
            call.cancel()
            self._end(failure)

    def _end(self, failure: KvferryError) -> None:
        if not self._is_open:
            return
        self._is_open = False
        for task in self._tasks[:1]:
            task.cancel()
        self._outgoing.clear()
        self.give_up(failure)
        self._on_end(failure)

    def _sweep(self) -> None:
        now = time.monotonic()
        for waiting in self._waiting.values():
            if now > waiting.deadline:
                waiting.fail(DeadlineExceeded(f"worker at {self._target} did not answer before the request's deadline"))
        self._sweeper = None
        if self._waiting:
            self._sweeper = asyncio.get_running_loop().call_later(SWEEP_EVERY_S, self._sweep)


def taken_out(target: str) -> WorkerUnavailable:
    """The error of a worker that the router has nothing to do with any more."""
    return WorkerUnavailable(f"worker at {target} was taken out")


def is_being_cancelled() -> bool:
    """Whether the running task is being cancelled: a call says so too when somebody else has closed its channel."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
