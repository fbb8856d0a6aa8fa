"""The set of workers: joins them, links every prefill to every decode worker, pings them, and knows who may be chosen."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from protocol import kvferry_worker_pb2 as pb
from protocol.errors import KvferryError, NotReady, WorkerUnavailable
from protocol.request import GenerateRequest
from router.fleet.cached_prefixes import CachedPrefixes
from router.fleet.cached_tokens import NOTHING_CACHED, CachedTokens
from router.fleet.clients import DecodeClient, PrefillClient
from router.fleet.failures import FailureCause, FailureCounts
from router.fleet.grpc_clients import GrpcDecodeClient, GrpcPrefillClient
from router.fleet.member import MAX_MISSED_PINGS, Member
from router.fleet.network_view import sight_of
from router.fleet.pairing import POLICIES
from router.fleet.planned_transfers import PlannedTransfers
from router.fleet.question import RoutingRules, question_of, with_cached
from router.fleet.readiness import ProofRecord, readiness_of, who_is_missing
from router.generation import Readiness
from router.reservations.contract import Reservations
from scheduling.pair_cost import Pair
from scheduling.prefill_time import PrefillTimeModel

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerTarget:
    """Where a worker's request plane listens, and what it is."""

    role: str
    target: str


@dataclass(frozen=True, slots=True)
class Connector:
    """Makes clients; tests give their own."""

    prefill: Callable[[str, str], PrefillClient] = GrpcPrefillClient
    decode: Callable[[str, str], DecodeClient] = GrpcDecodeClient


class Fleet:
    """All methods belong to one event loop. With `reservations` the network is held for each transfer; they are started with
    the first `join` and closed with the fleet.
    """

    def __init__(
        self,
        connector: Connector | None = None,
        rules: RoutingRules | None = None,
        reservations: Reservations | None = None,
    ) -> None:
        self.rules = rules or RoutingRules()
        self.transfers = PlannedTransfers(reservations, self.rules.clock)
        self.prefixes = CachedPrefixes(self.rules.clock)
        self.router_id = secrets.token_hex(8)
        self.prefills: dict[str, Member[PrefillClient]] = {}
        self.decodes: dict[str, Member[DecodeClient]] = {}
        self._connector = connector or Connector()
        self._num_choices = 0
        self._has_started = False
        self._pinger: asyncio.Task[None] | None = None
        self._linker: asyncio.Task[None] | None = None
        self._ping_every_s = self.rules.worker_timeout_s / MAX_MISSED_PINGS
        self.failures = FailureCounts()
        self.proof = ProofRecord()

    @property
    def members(self) -> list[Member[Any]]:
        """All workers, prefill first."""
        return [*self.prefills.values(), *self.decodes.values()]

    @property
    def reservations(self) -> Reservations | None:
        """Where the network is held for transfers; None where nobody plans them."""
        return self.transfers.reservations

    def full_name_of(self, worker: str) -> str:
        """A worker's name and incarnation, which no other cluster's worker has; of one that is not here only its name."""
        member = self.prefills.get(worker) or self.decodes.get(worker)
        return str(member.description.worker) if member is not None else worker

    async def join(self, targets: Sequence[WorkerTarget]) -> None:
        """Adds workers and links them with those that are here. Raises `WorkerUnavailable` for a silent one."""
        for target in targets:
            if target.role == "prefill":
                prefill = self._connector.prefill(target.target, self.router_id)
                prefill_member = Member(prefill, await prefill.describe())
                self.prefills[prefill_member.name] = prefill_member
            else:
                decode = self._connector.decode(target.target, self.router_id)
                decode_member = Member(decode, await decode.describe())
                self.decodes[decode_member.name] = decode_member
        if self.reservations is not None and not self._has_started:
            self._has_started = True
            await self.reservations.start(self.transfers.on_pace)
        await self.link_all()
        if self._pinger is None:
            self._pinger = asyncio.create_task(self._ping_forever())

    async def pause(self) -> None:
        """Stops looking after the workers, until the next `join`."""
        tasks = [task for task in (self._pinger, self._linker) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pinger = self._linker = None

    async def close(self) -> None:
        """Ends all connections."""
        await self.pause()
        await self.prefixes.close()
        if self.reservations is not None and self._has_started:
            await self.reservations.close()
        for member in self.members:
            await member.client.close()

    async def link_all(self) -> None:
        """Shakes hands between all pairs that have not yet. A pair that refuses is not used; the reason is kept."""
        for prefill, decode in self._unlinked():
            await self._link(prefill, decode)
        self._show_network()

    def cached_tokens(self, request: GenerateRequest) -> CachedTokens:
        """What the workers have of a prompt, as far as they have told."""
        return self.prefixes.cached_tokens(request, self.rules.wire)

    def choose(self, request: GenerateRequest, excluded: frozenset[str], cached: CachedTokens = NOTHING_CACHED) -> Pair:
        """The pair for a request of whose prompt so much is `cached`, without the workers named in `excluded`.

        Raises `NotReady` when nobody can decode.
        """
        prefills = [one for one in self.prefills.values() if one.is_available and one.name not in excluded]
        decodes = [one for one in self.decodes.values() if one.is_available and one.name not in excluded]
        question = with_cached(question_of(request, prefills, decodes, self.rules, self._num_choices), cached)
        pair = POLICIES[self.rules.policy](question)
        self._num_choices += 1
        if pair is None:
            raise NotReady(who_is_missing({}, self.decodes) or "all decode workers have failed this request")
        return pair

    def readiness(self) -> Readiness:
        """Whether a generation over a prefill and a decode worker has succeeded lately and can be again, and why not."""
        since_s = self.rules.clock() - self.proof.last_success_at
        is_proven = since_s <= self.rules.readiness_window_s
        return readiness_of(self.prefills, self.decodes, "" if is_proven else self.proof.why_none(since_s))

    async def _link(self, prefill: Member[PrefillClient], decode: Member[DecodeClient]) -> None:
        lives = prefill.description.worker, decode.description.worker
        try:
            reply = await prefill.client.connect(decode.client.target)
        except KvferryError as error:
            prefill.link_refusals[decode.name] = f"{prefill.name} and {decode.name}: {error.message}"
            if not error.retryable:
                prefill.refused_for_good.add(decode.name)
            log.warning("%s cannot ship to %s: %s", prefill.name, decode.name, error.message)
            return
        if lives != (prefill.description.worker, decode.description.worker):
            return  # one of them was restarted meanwhile; the next round links its new life
        prefill.link_refusals.pop(decode.name, None)
        prefill.links[decode.name] = reply
        rate = reply.bytes_per_second / 1e9
        log.info("link %s -> %s: %s, %.2f GB/s", prefill.name, decode.name, reply.transport, rate)

    async def look(self) -> None:
        """Asks all workers for their status, at once; one that does not answer keeps its last, and is not held to have missed
        a ping.
        """
        await asyncio.gather(*(self._ping(one, is_round=False) for one in self.members))

    async def look_after(self) -> None:
        """One round: pings all workers, ends the transfers with those that are gone, and starts to make missing links."""
        await asyncio.gather(*(self._ping(one, is_round=True) for one in self.members))
        await asyncio.gather(*(self._bury(one) for one in self.members if not one.is_healthy))
        if self._unlinked() and (self._linker is None or self._linker.done()):
            # On its own: a handshake with a worker that hangs must not keep the others from being looked after.
            self._linker = asyncio.create_task(self.link_all())
        self.prefixes.look_after([*self.prefills.values()], [*self.decodes.values()])
        self._show_network()

    def _show_network(self) -> None:
        if self.reservations is not None:
            self.reservations.observe(sight_of(self.prefills.values(), self.decodes))

    async def _ping_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            next_at = loop.time() + self._ping_every_s
            await self.look_after()
            await asyncio.sleep(next_at - loop.time())

    def _unlinked(self) -> list[tuple[Member[PrefillClient], Member[DecodeClient]]]:
        return [
            (prefill, decode)
            for prefill in self.prefills.values()
            for decode in self.decodes.values()
            if prefill.is_healthy
            and decode.is_healthy
            and decode.name not in prefill.links
            and decode.name not in prefill.refused_for_good
        ]

    async def _ping(self, member: Member[Any], *, is_round: bool) -> None:
        """One that is not answered is missed if it is of a round: whoever asks between them makes nobody gone sooner."""
        try:
            member.status = await self._status_of(member)
            if member.status.worker.incarnation != member.description.worker.incarnation:
                await self._welcome_back(member)
            member.num_missed_pings = 0
            member.forgotten_by.clear()
            member.is_known_gone = False
            for request_id in list(member.uncancelled):
                await member.client.cancel(request_id)
                member.uncancelled.discard(request_id)
        except KvferryError as error:
            if not is_round:
                return
            was_healthy = member.is_healthy
            member.miss_ping()
            if was_healthy and not member.is_healthy:
                self.failures.count_worker(FailureCause.WORKER_SILENT, member.name, error.message)

    async def _status_of(self, member: Member[Any]) -> pb.WorkerStatus:
        try:
            async with asyncio.timeout(self._ping_every_s):
                status: pb.WorkerStatus = await member.client.status()
                return status
        except TimeoutError:
            raise WorkerUnavailable(f"{member.name} did not answer within {self._ping_every_s:g} s") from None

    async def _bury(self, member: Member[Any]) -> None:
        """Tells the other side that an incarnation is gone: what it held there is free. A worker that is only silent may
        be stopped and write again, so that what it holds stays in quarantine.
        """
        others = self.decodes if member.name in self.prefills else self.prefills
        mourners = [one for one in others.values() if one.is_healthy and one.name not in member.forgotten_by]
        is_all_done = member.is_known_gone and not mourners
        if is_all_done or not await member.client.is_gone():
            return
        if not member.is_known_gone:
            member.is_known_gone = True
            self.failures.count_worker(FailureCause.WORKER_GONE, member.name, f"{member.description.worker} has ended")
        member.links.clear()
        for other in mourners:
            other.links.pop(member.name, None)
            try:
                await other.client.forget(member.description.worker)
                member.forgotten_by.add(other.name)
            except KvferryError as error:
                log.warning("%s was not told that %s is gone: %s", other.name, member.name, error.message)

    async def _welcome_back(self, member: Member[Any]) -> None:
        """A restarted worker at the same address: its links are made anew."""
        member.description = await member.client.describe()
        member.prefill_time = PrefillTimeModel.stated()  # it may run on something else now
        member.uncancelled.clear()
        member.breaker.reset()
        for prefill in [member, *self.prefills.values()]:
            names = list(self.decodes) if prefill is member else [member.name]
            for name in names:
                prefill.links.pop(name, None)
                prefill.refused_for_good.discard(name)
        log.info("%s is back as %s", member.name, member.description.worker)
