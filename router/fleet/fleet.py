"""The set of workers: joins them, links every prefill to every decode worker, pings them, and knows who may be chosen."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from protocol import kvferry_worker_pb2 as pb
from protocol.description import WorkerDescription
from protocol.errors import KvferryError, NotReady, WorkerUnavailable
from protocol.request import GenerateRequest
from router.fleet.cached_prefixes import CachedPrefixes
from router.fleet.cached_tokens import NOTHING_CACHED, CachedTokens
from router.fleet.clients import DecodeClient, PrefillClient
from router.fleet.departures import Departures
from router.fleet.failures import FailureCause, FailureCounts
from router.fleet.grpc_clients import GrpcDecodeClient, GrpcPrefillClient
from router.fleet.links import Links
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
    """Where a worker's request plane listens, and what it is. `name` may be left out where no other life of it will join;
    `num_restarts` is how often it was started again, `has_seen_end` that none of its former lives is left.
    """

    role: str
    target: str
    name: str = ""
    num_restarts: int = 0
    has_seen_end: bool = False


@dataclass(frozen=True, slots=True)
class RouterLife:
    """The process of this router, and how often it was started again before."""

    process_id: int = 0
    num_restarts: int = 0


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
        self.links = Links(self.prefills, self.decodes)
        self.failures = FailureCounts()
        self.proof = ProofRecord()
        self.departures = Departures(self.prefills, self.decodes, self.failures)
        self.router_life = RouterLife()
        self._connector = connector or Connector()
        self._num_choices = 0
        self._has_started = False
        self._pinger: asyncio.Task[None] | None = None
        self._ping_every_s = self.rules.worker_timeout_s / MAX_MISSED_PINGS
        self._asker: asyncio.Task[None] | None = None
        self._silent: dict[str, WorkerTarget] = {}

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

    async def join(self, targets: Sequence[WorkerTarget], *, waits_for_links: bool = True) -> None:
        """Adds workers; another life of a known one takes the place of the former, whose requests move on. Raises
        `WorkerUnavailable` for a silent one, which is asked again in each round.

        Links are made before it returns, or meanwhile: then a worker that hangs keeps no other from being used.
        """
        silence = await self._admit(targets)
        if self.reservations is not None and not self._has_started:
            self._has_started = True
            await self.reservations.start(self.transfers.on_pace)
        if waits_for_links:
            await self.link_all()
        if self._pinger is None:
            self._pinger = asyncio.create_task(self._ping_forever())
        await self._tend()
        if silence is not None:
            raise silence

    async def _admit(self, targets: Sequence[WorkerTarget]) -> KvferryError | None:
        """Takes in those that answer, in their order; why another did not."""
        clients = [self._client_of(one) for one in targets]
        answers = await asyncio.gather(*(one.describe() for one in clients), return_exceptions=True)
        silence: KvferryError | None = None
        for target, client, answer in zip(targets, clients, answers, strict=True):
            known = self._table(target).get(target.name)
            is_outdated = known is not None and known.num_restarts > target.num_restarts
            if isinstance(answer, WorkerDescription) and not is_outdated:
                self._silent.pop(target.name or target.target, None)
                await self._place(target, client, answer)
                continue
            await client.close()
            if isinstance(answer, BaseException) and not isinstance(answer, KvferryError):
                raise answer
            if isinstance(answer, KvferryError) and not is_outdated:
                self._silent[target.name or target.target] = target
                silence = answer
        return silence

    def _table(self, target: WorkerTarget) -> dict[str, Member[Any]]:
        return self.prefills if target.role == "prefill" else self.decodes

    def _client_of(self, target: WorkerTarget) -> PrefillClient | DecodeClient:
        connect = self._connector.prefill if target.role == "prefill" else self._connector.decode
        return connect(target.target, self.router_id)

    async def _place(self, target: WorkerTarget, client: Any, description: WorkerDescription) -> None:
        """Puts a worker into its table, and its former life out of it."""
        name = description.worker.name
        table = self._table(target)
        former = table.get(name)
        if former is not None and former.description.worker == description.worker:
            await client.close()
            return
        table[name] = Member(client, description, num_restarts=target.num_restarts)
        if former is None:
            return
        self.links.forget(name)
        self.departures.replaced(former, has_ended=target.has_seen_end)
        former.client.give_up()
        await former.client.close()
        log.info("%s takes the place of %s", description.worker, former.description.worker)

    async def pause(self) -> None:
        """Stops looking after the workers, until the next `join`."""
        tasks = [task for task in (self._pinger, self._asker) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._pinger = self._asker = None
        await self.links.close()

    async def close(self) -> None:
        """Ends all connections."""
        await self.pause()
        await self.prefixes.close()
        if self.reservations is not None and self._has_started:
            await self.reservations.close()
        for member in self.members:
            await member.client.close()

    async def link_all(self) -> None:
        """Shakes hands between all pairs that have not yet, as `Links.make_all` does."""
        await self.links.make_all()
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

    async def look(self) -> None:
        """Asks all workers for their status, at once; one that does not answer keeps its last, and is not held to have missed
        a ping.
        """
        await asyncio.gather(*(self._ping(one, is_round=False) for one in self.members))

    async def look_after(self) -> None:
        """One round: pings all workers, ends the transfers with those that are gone, and starts to make missing links."""
        await asyncio.gather(*(self._ping(one, is_round=True) for one in self.members))
        if self._silent and (self._asker is None or self._asker.done()):
            # On its own: a worker that hangs must not keep the others from being looked after.
            self._asker = asyncio.create_task(self._ask_silent())
        await self._tend()

    async def _tend(self) -> None:
        """What follows from who is here now."""
        await self.departures.look_after()
        self.links.start_missing()
        self.prefixes.look_after([*self.prefills.values()], [*self.decodes.values()])
        self._show_network()

    async def _ask_silent(self) -> None:
        """Takes in workers that were silent when they were to join."""
        await self._admit([*self._silent.values()])

    def _show_network(self) -> None:
        if self.reservations is not None:
            self.reservations.observe(sight_of(self.prefills.values(), self.decodes))

    async def _ping_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            next_at = loop.time() + self._ping_every_s
            try:
                await self.look_after()
            except Exception:
                log.exception("a round of looking after the workers failed")  # and must not be the last
            await asyncio.sleep(next_at - loop.time())

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

    async def _welcome_back(self, member: Member[Any]) -> None:
        """A restarted worker at the same address: its links are made anew."""
        member.description = await member.client.describe()
        member.prefill_time = PrefillTimeModel.stated()  # it may run on something else now
        member.uncancelled.clear()
        member.breaker.reset()
        self.links.forget(member.name)
        log.info("%s is back as %s", member.name, member.description.worker)
