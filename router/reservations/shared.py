"""A planner that runs elsewhere and that other routers use too: `Reservations` over one gRPC stream.

The stream is opened again whenever it ends, for ever. Nothing is kept for later while there is none: what this router gives
back or sees meanwhile it says when the next one begins, by telling what it holds and sees.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import grpc

from protocol import kvferry_planner_pb2 as pb
from protocol.errors import DeadlineExceeded, KvferryError, Overloaded, WorkerUnavailable, by_code
from protocol.kvferry_planner_pb2_grpc import PlannerStub
from protocol.order_session import ROUTER_KEY
from protocol.pace import Pace
from protocol.rpc_channel import open_channel
from protocol.rpc_errors import from_rpc
from protocol.wire import pace_from_wire
from router.reservations.contract import RESERVE_WITHIN_S, OnPace, Reservation
from router.reservations.names import SharedNames
from router.reservations.wire import ask_to_wire, sight_to_wire, use_from_wire
from transfer.planner.network import NetworkSight, NetworkUse, TransferAsk

log = logging.getLogger(__name__)

HEARTBEAT_S = 1.0
SILENCE_S = 5.0
"""A planner that neither says nor takes anything for so long is gone: it answers heartbeats."""
OPEN_WITHIN_S = 5.0
MIN_RETRY_S = 0.1
MAX_RETRY_S = 5.0
CLOSE_WITHIN_S = 1.0
MAX_WAITING = 1024
"""Asks under way; each waits for `RESERVE_WITHIN_S` at most."""
_RECONNECTION = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1000),
    ("grpc.max_reconnect_backoff_ms", 2000),
    ("grpc.use_local_subchannel_pool", 1),
)
"""gRPC's own default may wait two minutes after a planner has come back."""

Call = grpc.aio.StreamStreamCall[pb.RouterMessage, pb.PlannerMessage]


class SharedReservations:
    """The planner at `target` (`host:port`), for the router `router_id`; see `contract.Reservations`.

    `full_name_of` says what a worker is called there, see `names.py`; by default as here.
    """

    def __init__(self, target: str, router_id: str, token: str = "", full_name_of: Callable[[str], str] = str) -> None:
        self._peer = f"the planner at {target}"
        self._target = target
        self._router_id = router_id
        self._token = token
        self._on_pace: OnPace = lambda lease_id, pace: None
        self._is_open = False
        self._is_closing = False
        self._reason = f"{self._peer} has not answered yet"
        self._keeping: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._outgoing = pb.RouterMessage()
        self._progress: dict[int, int] = {}
        self._last_number = 0
        self._waiting: dict[int, asyncio.Future[Reservation]] = {}
        self._held: dict[int, Pace] = {}
        self._names = SharedNames(full_name_of)
        self._sight = NetworkSight()
        self._use = NetworkUse()

    @property
    def is_open(self) -> bool:
        """Whether the planner can be asked now."""
        return self._is_open

    @property
    def reason(self) -> str:
        """Why the planner cannot be asked; empty while it can."""
        return self._reason

    async def start(self, on_pace: OnPace) -> None:
        """Begins to look for the planner, and never stops; waits for nothing."""
        self._on_pace = on_pace
        self._keeping = asyncio.create_task(self._keep_open())
        self._keeping.add_done_callback(_log_failure)

    async def reserve(self, ask: TransferAsk) -> Reservation:
        """Asks the planner. Raises what it refuses with, `WorkerUnavailable` at once while there is none and after
        `RESERVE_WITHIN_S` without an answer, and `Overloaded` when `MAX_WAITING` asks wait already.
        """
        if not self._is_open:
            raise WorkerUnavailable(self._reason)
        if len(self._waiting) >= MAX_WAITING:
            raise Overloaded(f"{MAX_WAITING} requests wait for {self._peer} already")
        self._last_number += 1
        number = self._last_number
        answered: asyncio.Future[Reservation] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answered
        self._outgoing.reserves.append(ask_to_wire(number, self._names.ask(ask)))
        self._wake.set()
        is_returned = False
        try:
            await asyncio.wait((answered,), timeout=RESERVE_WITHIN_S)
            if not answered.done():
                raise WorkerUnavailable(f"{self._peer} did not answer within {RESERVE_WITHIN_S} s")
            lease_id = answered.result().lease_id
            is_returned = True
            return Reservation(lease_id, self._held.get(lease_id, answered.result().pace))
        finally:
            del self._waiting[number]  # an answer that comes yet is given back
            if answered.done() and answered.exception() is None and not is_returned:
                self.release(answered.result().lease_id)

    def progress(self, lease_id: int, acknowledged_bytes: int) -> None:
        """Tells what has landed, with the next message; forgotten while there is no planner."""
        if self._is_open and lease_id in self._held:
            self._progress[lease_id] = acknowledged_bytes
            self._wake.set()

    def release(self, lease_id: int) -> None:
        """Gives a lease back: now, or by not naming it when the planner is there again."""
        self._progress.pop(lease_id, None)
        if self._held.pop(lease_id, None) is not None and self._is_open:
            self._outgoing.released_lease_ids.append(lease_id)
            self._wake.set()

    def observe(self, sight: NetworkSight) -> None:
        """Tells what this router sees if it is not what it told last, and again whenever the planner comes back."""
        told = self._names.sight(sight)
        if told == self._sight:
            return
        self._sight = told
        if self._is_open:
            self._outgoing.sight.CopyFrom(sight_to_wire(told))
            self._wake.set()

    def use(self) -> NetworkUse:
        """How all routers use the network, of about the last second; the last counts alone while there is no planner."""
        return self._use

    async def close(self) -> None:
        """Says goodbye, for at most `CLOSE_WITHIN_S`: the planner then gives back all that this router holds."""
        self._is_closing = True
        if self._keeping is None:
            return
        if self._is_open:
            self._outgoing.is_leaving = True
            self._wake.set()
            await asyncio.wait((self._keeping,), timeout=CLOSE_WITHIN_S)
        self._keeping.cancel()
        await asyncio.gather(self._keeping, return_exceptions=True)

    async def _keep_open(self) -> None:
        retry_s = MIN_RETRY_S
        async with open_channel(self._target, self._token, _RECONNECTION) as channel:
            stub = PlannerStub(channel)
            while not self._is_closing:
                call = stub.Session(metadata=((ROUTER_KEY, self._router_id),), wait_for_ready=True)
                try:
                    await self._open(call)
                    retry_s = MIN_RETRY_S
                    await self._converse(call)
                except KvferryError as error:
                    self._say(error.message)
                finally:
                    call.cancel()
                    self._shut()
                if not self._is_closing:
                    # Routers that lost the same planner do not all come back at the same instant.
                    await asyncio.sleep(retry_s * random.uniform(0.5, 1.0))
                    retry_s = min(2.0 * retry_s, MAX_RETRY_S)

    async def _open(self, call: Call) -> None:
        try:
            async with asyncio.timeout(OPEN_WITHIN_S):
                await call.initial_metadata()
        except TimeoutError:
            raise DeadlineExceeded(f"{self._peer} does not answer") from None
        except grpc.RpcError as error:
            raise from_rpc(error, self._peer) from error
        self._outgoing = pb.RouterMessage(hello=pb.Hello(held_lease_ids=self._held), sight=sight_to_wire(self._sight))
        self._wake.set()
        self._is_open = True
        self._reason = ""
        log.info("%s is there", self._peer)

    async def _converse(self, call: Call) -> None:
        """Until the planner ends the stream or is told goodbye. Raises why else it ends."""
        reading, writing = asyncio.create_task(self._read(call)), asyncio.create_task(self._write(call))
        try:
            done, _ = await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            await reading  # a writer that can write no more leaves it to the reader to say why
        except TimeoutError:
            raise DeadlineExceeded(f"{self._peer} was silent for {SILENCE_S} s") from None
        except grpc.RpcError as error:
            raise from_rpc(error, self._peer) from error
        finally:
            for task in (reading, writing):
                task.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)

    async def _write(self, call: Call) -> None:
        """What there is to say; at least an empty message each `HEARTBEAT_S`. A planner that takes nothing answers nothing
        either: the reader notices.
        """
        try:
            while True:
                with suppress(TimeoutError):
                    async with asyncio.timeout(HEARTBEAT_S):
                        await self._wake.wait()
                await asyncio.sleep(0)  # what else is ready in this turn goes along
                self._wake.clear()
                await call.write(self._next_message())
        except (grpc.RpcError, asyncio.InvalidStateError) as error:
            log.debug("no more messages to %s: %s", self._peer, error)

    def _next_message(self) -> pb.RouterMessage:
        message, self._outgoing = self._outgoing, pb.RouterMessage()
        progress, self._progress = self._progress, {}
        message.progress.extend(
            pb.LeaseProgress(lease_id=lease_id, acknowledged_bytes=count) for lease_id, count in progress.items()
        )
        return message

    async def _read(self, call: Call) -> None:
        while True:
            async with asyncio.timeout(SILENCE_S):
                message = await call.read()
            if isinstance(message, pb.PlannerMessage):
                self._take(message)
            elif self._is_closing:
                return
            else:
                raise WorkerUnavailable(f"{self._peer} ended the stream")

    def _take(self, message: pb.PlannerMessage) -> None:
        """Raises `BadRequest` for what cannot be."""
        for grant in message.grants:
            self._granted(grant.number, Reservation(grant.lease_id, pace_from_wire(grant.pace)))
        for refusal in message.refusals:
            answered = self._waiting.get(refusal.number)
            if answered is not None and not answered.done():
                answered.set_exception(by_code(refusal.code)(refusal.message))
        for told in message.paces:
            if told.lease_id in self._held:
                self._held[told.lease_id] = pace_from_wire(told.pace)
                self._on_pace(told.lease_id, self._held[told.lease_id])
        if message.HasField("use"):
            self._use = self._names.use(use_from_wire(message.use))

    def _granted(self, number: int, reservation: Reservation) -> None:
        answered = self._waiting.get(number)
        if answered is not None and not answered.done():
            self._held[reservation.lease_id] = reservation.pace
            answered.set_result(reservation)
        else:  # whoever asked went on without it
            self._outgoing.released_lease_ids.append(reservation.lease_id)
            self._wake.set()

    def _shut(self) -> None:
        self._is_open = False
        self._reason = self._reason or f"{self._peer} is gone"
        for answered in self._waiting.values():
            if not answered.done():
                answered.set_exception(WorkerUnavailable(self._reason))
        self._progress.clear()
        self._use = replace(self._use, ports=(), leases=())  # the counts stay: they would seem to begin again

    def _say(self, reason: str) -> None:
        """Logs why there is no planner, once as long as it is the same."""
        if reason != self._reason:
            log.warning("%s; transfers go on without plans, and it is tried again", reason)
        self._reason = reason


def _log_failure(keeping: asyncio.Task[None]) -> None:
    if not keeping.cancelled() and keeping.exception() is not None:
        log.error("the stream to the planner failed: no transfer is planned any more", exc_info=keeping.exception())
