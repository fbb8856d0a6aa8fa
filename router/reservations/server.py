"""The planner as a service: one desk, one loop, one stream a router.

A router is alive as long as it says anything, and its leases then are renewed. One that says goodbye gives all back at once.
One that vanishes keeps what it holds until that expires, so that it may come back and go on. A router that does not read what
it is told is cut off, which is the same as vanishing. Knows no Ray and no worker: what routers see is all that it sees.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import grpc
from grpc_health.v1 import health, health_pb2
from grpc_health.v1.health_pb2_grpc import add_HealthServicer_to_server

from protocol import kvferry_planner_pb2 as pb
from protocol.errors import Cancelled, ConfigError, KvferryError
from protocol.kvferry_planner_pb2_grpc import PlannerServicer, add_PlannerServicer_to_server
from protocol.order_session import router_of
from protocol.rpc_errors import refuse
from protocol.rpc_server import CHANNEL_OPTIONS
from protocol.rpc_token import TokenInterceptor
from router.reservations.session import PlannerSession
from router.reservations.wire import ask_from_wire, sight_from_wire, use_to_wire
from transfer.planner.desk import PlannerDesk
from transfer.planner.ledger import LeaseTerms, Ledger
from transfer.planner.packet import PacketFabric
from transfer.planner.planner import TransferPlanner

log = logging.getLogger(__name__)

SERVICE = "kvferry.planner.v1.Planner"
MAX_ROUTERS = 256
SPARE_CALLS = 64
"""Calls besides the routers' streams: health, and those that are about to be refused."""
CHANGES_EVERY_S = 0.05
"""How often paces are looked at while there are leases."""
SOON_S = 0.005
"""How long they are left alone after a change, so that what comes close together is told together."""
USE_EVERY_S = 0.9
"""How often a router is told how the network is used: with nearly each of its messages of a second."""
STOP_WITHIN_S = 1.0
LIFE_BITS, LEASE_BITS = 21, 32
KEEPALIVE = (("grpc.keepalive_time_ms", 30_000), ("grpc.keepalive_timeout_ms", 10_000))
"""Connections of hosts that are gone end by it; routers by their streams, long before."""

Context = grpc.aio.ServicerContext[Any, Any]


def desk_for_sharing(terms: LeaseTerms, fixed_bytes_per_second: int | None = None) -> PlannerDesk:
    """A desk over packet links whose lease ids no other planner gives, nor this one after a restart: a router that comes back
    with ids of an earlier life then speaks of nobody's leases. They stay within 53 bits, which JSON keeps exact.
    """
    first_lease_id = (secrets.randbits(LIFE_BITS) << LEASE_BITS) + 1
    fabric = PacketFabric(Ledger(terms, next_lease_id=first_lease_id))
    return PlannerDesk(TransferPlanner(fabric, fixed_bytes_per_second))


@dataclass(frozen=True, slots=True)
class PlannerAddress:
    """Where a planner listens; port 0 takes a free one. With a `token`, who lacks it is refused."""

    host: str = "127.0.0.1"
    port: int = 0
    token: str = ""


class PlannerServer(PlannerServicer):
    """Serves `desk` to routers. Belongs to the loop that it is started on; starts once.

    `terms` are those of the desk's leases: a router that is away for longer has lost them and is forgotten.
    """

    def __init__(
        self,
        desk: PlannerDesk,
        address: PlannerAddress,
        terms: LeaseTerms,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._desk = desk
        self._address = address
        self._lease_s = terms.lease_s
        self._clock = clock
        self._sessions: dict[str, PlannerSession] = {}
        self._absent: dict[str, asyncio.TimerHandle] = {}
        self._is_touched = asyncio.Event()
        self._is_stopping = False
        self._use = pb.NetworkUse()
        self._use_at = float("-inf")
        self._health = health.aio.HealthServicer()  # type: ignore[attr-defined]  # the stubs lack it
        self._server: grpc.aio.Server | None = None
        self._pacing: asyncio.Task[None] | None = None

    async def start(self) -> str:
        """Serves from now on; returns `host:port` for routers. Raises `ConfigError` when the port cannot be had."""
        host, token = self._address.host, self._address.token
        shown = f"[{host}]" if ":" in host else host
        server = grpc.aio.server(
            interceptors=[TokenInterceptor(token)] if token else [],
            # Otherwise a second planner on the port would get half of the routers, and no error.
            options=[*CHANNEL_OPTIONS, ("grpc.so_reuseport", 0), *KEEPALIVE],
            maximum_concurrent_rpcs=MAX_ROUTERS + SPARE_CALLS,
        )
        add_PlannerServicer_to_server(self, server)
        add_HealthServicer_to_server(self._health, server)
        try:
            port = server.add_insecure_port(f"{shown}:{self._address.port}")
            await server.start()
        except RuntimeError as error:
            raise ConfigError(
                f"the planner cannot listen on {shown}:{self._address.port}: the port is in use, or the host is not this "
                "machine's; see --port and --host"
            ) from error
        await self._health.set(SERVICE, health_pb2.HealthCheckResponse.SERVING)
        self._server = server
        self._pacing = asyncio.create_task(self._keep_paces())
        return f"{shown}:{port}"

    async def wait(self) -> None:
        """Until `stop`. Raises what the planner failed with, if it did."""
        if self._pacing is not None:
            await asyncio.wait((self._pacing,))
            if not self._pacing.cancelled():
                self._pacing.result()

    async def stop(self) -> None:
        """Ends the routers' streams, which go on without plans, within `STOP_WITHIN_S`. Idempotent."""
        self._is_stopping = True
        await self._health.enter_graceful_shutdown()
        for session in list(self._sessions.values()):
            session.end(Cancelled("the planner stops"))
        if self._server is not None:
            await self._server.stop(STOP_WITHIN_S)
        if self._pacing is not None:
            self._pacing.cancel()
        for timer in self._absent.values():
            timer.cancel()
        self._absent.clear()

    async def Session(self, requests: Any, context: Context) -> None:
        """One router's stream, see the service's definition."""
        del requests  # read from the context, where a wait can have an end
        try:
            session = self._joined(router_of(context))
        except KvferryError as error:
            await refuse(context, error)
        try:
            await session.serve(context, lambda message: self._take(session, message), self._lease_s)
            return
        except KvferryError as error:
            reason = error
        finally:
            self._parted(session)
        log.info("the stream of router %s ends: %s", session.owner, reason.message)
        with suppress(
            grpc.aio.InternalError
        ):  # gone meanwhile: one that reads nothing cannot be told before its connection ends
            await refuse(context, reason)

    def _joined(self, owner: str) -> PlannerSession:
        if len(self._sessions) >= MAX_ROUTERS and owner not in self._sessions:
            raise ConfigError(f"{MAX_ROUTERS} routers share this planner already: start another one for the rest")
        if owner in self._sessions:
            self._sessions[owner].end(Cancelled(f"router {owner} opened another stream"))
        if owner in self._absent:
            self._absent.pop(owner).cancel()
        session = self._sessions[owner] = PlannerSession(owner)
        log.info("router %s is here, one of %d", owner, len(self._sessions))
        return session

    def _parted(self, session: PlannerSession) -> None:
        owner = session.owner
        if self._sessions.get(owner) is not session:
            return
        del self._sessions[owner]
        if session.has_left or self._is_stopping:
            log.info("router %s left", owner)
            return
        log.warning("router %s is away; what it holds expires in %.0f s", owner, self._lease_s)
        self._absent[owner] = asyncio.get_running_loop().call_later(self._lease_s, self._forget, owner)

    def _forget(self, owner: str) -> None:
        del self._absent[owner]
        self._tell_changes()  # what has expired is counted as that
        self._desk.leave(owner, self._clock())
        self._is_touched.set()

    def _take(self, session: PlannerSession, message: pb.RouterMessage) -> None:
        """Raises `BadRequest` for a message that says what cannot be."""
        owner, now = session.owner, self._clock()
        if self._sessions.get(owner) is not session:
            return  # read before the router opened another stream: that one has told what counts
        self._desk.renew(owner, now)
        if message.HasField("hello"):
            self._resume(session, frozenset(message.hello.held_lease_ids), now)
        if message.HasField("sight"):
            self._desk.observe(owner, sight_from_wire(message.sight), now)
        for lease_id in message.released_lease_ids:
            self._desk.release(lease_id, now)
        for progress in message.progress:
            self._desk.progress(progress.lease_id, progress.acknowledged_bytes, now)
        for ask in message.reserves:
            self._reserve(session, ask, now)
        if message.is_leaving:
            self._desk.leave(owner, now)
        if any(field.name != "progress" for field, _ in message.ListFields()):
            self._is_touched.set()
        if now - session.use_told_at >= USE_EVERY_S:
            session.tell_use(self._use_of(now), now)

    def _resume(self, session: PlannerSession, held: frozenset[int], now: float) -> None:
        """Gives back what the router does not know of, and tells it the paces of the rest: some changed while it was away."""
        for lease in self._desk.use(now).leases:
            if lease.owner != session.owner:
                continue
            if lease.lease_id in held:
                session.tell_pace(lease.lease_id, lease.pace)
            else:
                self._desk.release(lease.lease_id, now)

    def _reserve(self, session: PlannerSession, ask: pb.ReserveAsk, now: float) -> None:
        try:
            lease_id, pace = self._desk.reserve(session.owner, ask_from_wire(ask), now)
        except KvferryError as error:
            session.refuse(ask.number, error)
            return
        session.grant(ask.number, lease_id, pace)

    def _use_of(self, now: float) -> pb.NetworkUse:
        """One for all routers, since it says the same to each."""
        if now - self._use_at >= USE_EVERY_S:
            self._use, self._use_at = use_to_wire(self._desk.use(now)), now
        return self._use

    async def _keep_paces(self) -> None:
        pause_s = SOON_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(CHANGES_EVERY_S if self._desk.num_leases else None):
                    await self._is_touched.wait()
                await asyncio.sleep(pause_s)
            self._is_touched.clear()
            before = self._clock()
            self._tell_changes()
            pause_s = max(SOON_S, self._clock() - before)  # with very many leases half of the time is for the routers

    def _tell_changes(self) -> None:
        for owner, changed in self._desk.changes(self._clock()).items():
            session = self._sessions.get(owner)
            if session is not None:  # one that is away learns it when it comes back
                for lease_id, pace in changed:
                    session.tell_pace(lease_id, pace)
