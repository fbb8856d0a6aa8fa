"""Packet links: transfers share a port, each at the rate that was sold to it.

A window holds one rate from its start to its predicted end on three things: the source's egress, the destination's ingress and
the way between them. Decisions:

* A lease asks for the rate at which its prefill produces, so that both end together; once behind, for the rate that catches up.
* One lease takes at most `max_share` of a port. What is not sold is not lost: a sender may borrow what is idle.
* When a port is full, the start is put off to one of the next predicted ends, or the rate is lower: whichever ends sooner.
  A rate under `MIN_SHARE` of the narrower port (unless no more was asked) is not sold: it would hold the port for long.
* A lease that is not released by its predicted end holds nothing after it until it reports progress; then it gets what is free.
  Progress also hands a lease what others gave back, and never takes away the rate of a lease that is on time.

Pure: no clock, no I/O. All of this is this project's own design; no published planner was followed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from protocol.errors import PlanRefused, StaleProposal
from transfer.planner.lease import Lease, Pair, Proposal, TransferDemand, Window, check_pair
from transfer.planner.ledger import Ledger
from transfer.planner.paces import MIN_SHARE
from transfer.planner.profile import RateProfile

MAX_LATER_STARTS = 8
"""How many predicted ends are tried as a start before the last resort, the end of everything that is sold."""

_Key = tuple[str, ...]
_EMPTY = RateProfile()


@dataclass(frozen=True, slots=True)
class _Resource:
    """One of the three things that a transfer takes rate from, as it is now."""

    key: _Key
    bytes_per_second: int
    sold: RateProfile

    def free_at(self, time: float) -> int:
        """What can be sold at an instant; 0 where a port was measured anew and found narrower than what it sold."""
        return max(0, self.bytes_per_second - self.sold.at(time))


@dataclass(frozen=True, slots=True)
class PacketFabric:
    """Links that share their rate; see `fabric.Fabric` for what the methods promise."""

    ledger: Ledger = field(default_factory=Ledger)
    max_share: float = 0.5
    profiles: Mapping[_Key, RateProfile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0.0 < self.max_share <= 1.0:
            raise PlanRefused(f"one lease's share of a port is {self.max_share}; it must be in (0, 1]")

    @property
    def lends_idle(self) -> bool:
        """Links are shared: what one leaves others may use."""
        return True

    @property
    def leases(self) -> Mapping[int, Lease]:
        """All leases that are held."""
        return self.ledger.leases

    def propose(self, demand: TransferDemand, pair: Pair, now: float) -> Proposal:
        """The window that ends soonest. The search crosses the sold steps within the window once for each start it tries."""
        check_pair(demand, pair)
        return Proposal(demand, pair, (self._window(demand, pair, demand.num_bytes, now),))

    def commit(self, proposal: Proposal, now: float) -> tuple[PacketFabric, Lease]:
        """Holds the proposed rate, unless another lease took it since or its time is over."""
        for window in proposal.windows:
            if window.end <= now or not self._fits(proposal.pair, window):
                raise StaleProposal(f"the rate proposed to request {proposal.demand.request_id} is sold; propose again")
        ledger, lease = self.ledger.opened(proposal, now)
        return self._held(lease, now, ledger), lease

    def progress(self, lease_id: int, acknowledged_bytes: int, now: float) -> tuple[PacketFabric, Lease | None]:
        """Plans what is left from now on: sooner with what others gave back, later if the transfer is late."""
        lease = self.ledger.renewed(self.ledger.of(lease_id), now, acknowledged_bytes)
        if lease.remaining_bytes == 0:
            return self.release(lease_id, now), None
        return self._planned_anew(lease, now)

    def reschedule(self, lease_id: int, start: float, now: float) -> tuple[PacketFabric, Lease]:
        """Plans what is left for a prefill that begins at another time."""
        lease = self.ledger.renewed(self.ledger.of(lease_id), now)
        return self._planned_anew(replace(lease, demand=replace(lease.demand, start=start)), now)

    def release(self, lease_id: int, now: float) -> PacketFabric:
        """Gives the rate back at once."""
        if lease_id not in self.leases:
            return self
        return self._freed(self.leases[lease_id], now, self.ledger.without(lease_id))

    def renew(self, owner: str, now: float) -> PacketFabric:
        """Puts off the expiry of an owner's leases. Rates stay as sold."""
        return replace(self, ledger=self.ledger.with_owner_renewed(owner, now))

    def expire(self, now: float) -> tuple[PacketFabric, tuple[Lease, ...]]:
        """Frees what nobody renewed."""
        overdue, fabric = self.ledger.overdue(now), self
        for lease in overdue:
            fabric = fabric.release(lease.lease_id, now)
        return fabric, overdue

    def _planned_anew(self, lease: Lease, now: float) -> tuple[PacketFabric, Lease]:
        freed = self._freed(self.leases[lease.lease_id], now, self.ledger)
        moved = replace(lease, windows=(freed._window(lease.demand, lease.pair, lease.remaining_bytes, now),))
        return freed._held(moved, now, self.ledger.with_lease(moved)), moved

    def _window(self, demand: TransferDemand, pair: Pair, num_bytes: int, now: float) -> Window:
        resources = self._resources(pair)
        search = _Search(demand, num_bytes, resources, self._limit(pair), _floor(pair))
        starts = _later_starts(resources, max(now, demand.start), min(search.floor, demand.produced_bytes_per_second))
        found = [window for start in starts if (window := search.window_at(start)) is not None]
        return min(found, key=lambda window: (window.end, window.start))

    def _limit(self, pair: Pair) -> int:
        narrower = min(pair.egress.bytes_per_second, pair.ingress.bytes_per_second)
        return max(1, min(int(self.max_share * narrower), pair.bytes_per_second))

    def _resources(self, pair: Pair) -> tuple[_Resource, ...]:
        rates = (pair.egress.bytes_per_second, pair.ingress.bytes_per_second, pair.bytes_per_second)
        keys = _keys(pair)
        return tuple(
            _Resource(key, rate, self.profiles.get(key, _EMPTY)) for key, rate in zip(keys, rates, strict=True)
        )

    def _fits(self, pair: Pair, window: Window) -> bool:
        return all(
            each.sold.peak(window.start, window.end) + window.bytes_per_second <= each.bytes_per_second
            for each in self._resources(pair)
        )

    def _held(self, lease: Lease, now: float, ledger: Ledger) -> PacketFabric:
        profiles = dict(self.profiles)
        for key in _keys(lease.pair):
            profile = profiles.get(key, _EMPTY).pruned(now)
            for window in lease.windows:
                profile = profile.with_hold(max(now, window.start), window.end, window.bytes_per_second)
            profiles[key] = profile
        return replace(self, ledger=ledger, profiles=profiles)

    def _freed(self, lease: Lease, now: float, ledger: Ledger) -> PacketFabric:
        profiles = dict(self.profiles)
        for key in _keys(lease.pair):
            profile = profiles.get(key, _EMPTY).pruned(now)
            for window in lease.windows:
                profile = profile.without_hold(max(now, window.start), window.end, window.bytes_per_second)
            profiles[key] = profile
            if not profile.times:
                del profiles[key]
        return replace(self, ledger=ledger, profiles=profiles)


@dataclass(frozen=True, slots=True)
class _Search:
    """What a window is looked for, and how fast it may be."""

    demand: TransferDemand
    num_bytes: int
    resources: tuple[_Resource, ...]
    limit: int
    floor: int

    def window_at(self, start: float) -> Window | None:
        """The fastest window from `start` on whose rate is free from its start to its end; None if too little is free.

        A lower rate makes the window longer and meets more of what is sold: the walk goes on until the rate holds to the end.
        """
        asked = self._asked(start)
        rate, floor, time = asked, min(asked, self.floor), start
        while True:
            rate = min(rate, _free_at(self.resources, time))
            if rate < floor:
                return None
            end = max(start + self.num_bytes / rate, math.nextafter(start, math.inf))
            time = _next_change(self.resources, time)
            if end <= time:
                return Window(start, start, end, rate, self.num_bytes)

    def _asked(self, start: float) -> int:
        """The rate that ends with the prefill, at least that of production; when the prefill is over, as much as may be."""
        left_s = self.demand.produced_at - start
        if self.num_bytes >= self.limit * left_s:
            return self.limit
        return min(self.limit, max(self.demand.produced_bytes_per_second, int(self.num_bytes / left_s)))


def _later_starts(resources: tuple[_Resource, ...], start: float, floor: int) -> Iterator[float]:
    """`start`, the next few times at which more becomes free, and the end of all that is sold.

    While one of the resources is full the others do not matter: the search goes on where that one changes.
    """
    yield start
    last = max((each.sold.times[-1] for each in resources if each.sold.times), default=start)
    free, time = _free_at(resources, start), start
    num_tried = 0
    while num_tried < MAX_LATER_STARTS:
        full = [each.sold.next_change(time) for each in resources if each.free_at(time) < floor]
        time = max(full) if full else _next_change(resources, time)
        if time >= last:
            break
        before, free = free, _free_at(resources, time)
        if free > before and free >= floor:
            num_tried += 1
            yield time
    if last > start:
        yield last


def _free_at(resources: tuple[_Resource, ...], time: float) -> int:
    return min(each.free_at(time) for each in resources)


def _next_change(resources: tuple[_Resource, ...], time: float) -> float:
    return min(each.sold.next_change(time) for each in resources)


def _floor(pair: Pair) -> int:
    narrower = min(pair.egress.bytes_per_second, pair.ingress.bytes_per_second, pair.bytes_per_second)
    return max(1, int(MIN_SHARE * narrower))


def _keys(pair: Pair) -> tuple[_Key, ...]:
    source, destination = pair.names
    return ("egress", source), ("ingress", destination), ("pair", source, destination)
