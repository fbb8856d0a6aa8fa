"""Packet links: transfers share a port, each at the rates that were sold to it.

A window holds one rate on three things: the source's egress, the destination's ingress and the way between them. Decisions:

* A lease asks for the rate at which its prefill produces, so that both end together; once behind, for the rate that catches up.
* One lease takes at most `max_share` of a port, so that there is room for a floor of another one. What is not sold is not lost:
  a sender may borrow what is idle.
* A plan takes at every instant what is free (`packet_search.py`). A rate under `MIN_SHARE` of the narrowest place (unless no
  more was asked) is not sold: it would hold the port for long.
* Shortest remaining first: who would get less than it asks makes leases that have clearly more bytes left (`SHORTER`) yield on
  the ports that they have in common, the longest first, each by no more than is missing and down to a floor of `FLOOR_SHARE`;
  then they are planned anew in what is left. A newcomer does so, and a lease that reports progress. Nobody yields to a longer
  one, nor to one of nearly its own size: what it has in flight would make it the shorter one, which takes the rate back, and so
  on in turn, and both would end as late as if they had shared.
* A lease that is not released by its predicted end holds nothing after it until it reports progress; then it gets what is free.
  Progress also hands a lease what others gave back, and never takes away the rate of a shorter one.

A floor that a lease holds now is never taken: beside short ones it moves at least at a thirty-second of what it would have
alone, and ends within 32 times that time, as long as the port is not sold for longer ahead than the lease was planned. A port
has at most 32 floors at a time. A lease beyond them, or behind its predicted end on a port that is sold out, holds nothing and
moves by the least allowance of `paces.py` until something becomes free: that, not the floor, is what always ends a transfer.

Pure: no clock, no I/O. That the shortest remaining goes first is long known (SRPT); how it is done here, by leases that yield
to a floor, is this project's own; no published planner was followed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

from protocol.errors import PlanRefused, StaleProposal
from transfer.planner.lease import Lease, Pair, Proposal, TransferDemand, Window, Yield, check_pair
from transfer.planner.ledger import Ledger
from transfer.planner.paces import MIN_SHARE
from transfer.planner.packet_search import Key, Resource, Search
from transfer.planner.profile import RateProfile

FLOOR_SHARE = 1 / 32
"""What a lease keeps of the narrowest place on its way when it yields."""
SHORTER = 4 / 5
"""A lease yields to those that have at most this part of its bytes left."""
MIN_GAIN = 1 / 64
"""Nobody is made to yield for less than this part of the time that a transfer takes."""

_EMPTY = RateProfile()


@dataclass(frozen=True, slots=True)
class PacketFabric:
    """Links that share their rate; see `fabric.Fabric` for what the methods promise."""

    ledger: Ledger = field(default_factory=Ledger)
    max_share: float = 1.0 - FLOOR_SHARE
    profiles: Mapping[Key, RateProfile] = field(default_factory=dict)

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
        """What is free, and what longer leases would yield if that ends sooner."""
        check_pair(demand, pair)
        return self._planned(demand, pair, demand.num_bytes, now)

    def commit(self, proposal: Proposal, now: float) -> tuple[PacketFabric, Lease]:
        """Holds the proposed rates and has others yield, all or nothing.

        Raises `StaleProposal` if another lease took the rates since, one that would yield has changed, or their time is over.
        """
        request_id = proposal.demand.request_id
        if any(
            each.lease_id not in self.leases or self.leases[each.lease_id].windows != each.before
            for each in proposal.yields
        ):
            raise StaleProposal(f"a lease that would yield to request {request_id} has changed; propose again")
        fabric = self._with_yields(proposal.yields, now) if proposal.yields else self
        ledger, lease = fabric.ledger.opened(proposal, now)
        changed = [fabric.leases[each.lease_id] for each in proposal.yields]
        resources = fabric._resources(lease.pair)
        is_free = all(resource.excess(window) <= 0 for window in lease.windows for resource in resources)
        if lease.windows[-1].end <= now or not is_free or any(self._is_oversold(fabric, each) for each in changed):
            raise StaleProposal(f"the rate proposed to request {request_id} is sold; propose again")
        return fabric._moved((), (lease,), now, ledger), lease

    def progress(self, lease_id: int, acknowledged_bytes: int, now: float) -> tuple[PacketFabric, Lease | None]:
        """Plans what is left from now on: sooner with what others gave back or yield, later if the transfer is late."""
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
        return self._moved((self.leases[lease_id],), (), now, self.ledger.without(lease_id))

    def with_pairs(self, pairs: Mapping[tuple[str, str], Pair]) -> PacketFabric:
        """Plans made from now on know the new rates."""
        return replace(self, ledger=self.ledger.with_pairs(pairs))

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
        ledger = self.ledger.with_lease(replace(lease, windows=()))
        freed = self._moved((self.leases[lease.lease_id],), (), now, ledger)
        proposal = freed._planned(lease.demand, lease.pair, lease.remaining_bytes, now)
        moved = replace(lease, windows=proposal.windows)
        fabric = freed._with_yields(proposal.yields, now) if proposal.yields else freed
        return fabric._moved((), (moved,), now, fabric.ledger.with_lease(moved)), moved

    def _planned(self, demand: TransferDemand, pair: Pair, num_bytes: int, now: float) -> Proposal:
        search, resources, start = self._search(demand, pair, num_bytes), self._resources(pair), max(now, demand.start)
        windows = search.plan(resources, start)
        found = Proposal(demand, pair, windows)
        if len(windows) == 1 and windows[0].start == start and windows[0].bytes_per_second >= search.asked(start):
            return found
        longer = self._longer(pair, num_bytes, start)
        if not longer:
            return found
        room = tuple(replace(each, sold=each.sold.without_holds(_room(longer, each.key, start))) for each in resources)
        better = replace(found, windows=search.plan(room, start))
        if better.predicted_end - start >= (1.0 - MIN_GAIN) * (found.predicted_end - start):
            return found
        return replace(better, yields=self._yields(better, longer, now))

    def _yields(self, proposal: Proposal, longer: list[Lease], now: float) -> tuple[Yield, ...]:
        """Who makes room for the proposed windows: cut where they are too much, then planned anew, the shortest first."""
        fabric, cut = self, []
        for lease in longer:
            resources = fabric._resources(proposal.pair)
            over = [{each.key: each.excess(window) for each in resources} for window in proposal.windows]
            if all(excess <= 0 for each in over for excess in each.values()):
                break
            keys, windows = set(_keys(lease.pair)), lease.windows
            for window, excess in zip(proposal.windows, over, strict=True):
                windows = tuple(
                    _lowered(windows, window, max(excess[key] for key in excess if key in keys), lease.pair)
                )
            if windows != lease.windows:
                cut.append(replace(lease, windows=windows))
                fabric = fabric._moved((lease,), cut[-1:], now)
        fabric = fabric._moved((), (Lease(0, proposal.demand, proposal.pair, proposal.windows, now),), now)
        yields = []
        for lease in reversed(cut):
            fabric = fabric._moved((lease,), (), now)
            search = fabric._search(lease.demand, lease.pair, lease.remaining_bytes)
            after = search.plan(fabric._resources(lease.pair), max(now, lease.demand.start))
            fabric = fabric._moved((), (replace(lease, windows=after),), now)
            yields.append(Yield(lease.lease_id, self.leases[lease.lease_id].windows, after))
        return tuple(yields)

    def _longer(self, pair: Pair, num_bytes: int, start: float) -> list[Lease]:
        """Leases on the pair's ports that have clearly more left and hold something after `start`, the longest first."""
        source, destination = pair.names
        found = [
            lease
            for lease in self.leases.values()
            if (lease.demand.source == source or lease.demand.destination == destination)
            and num_bytes <= SHORTER * lease.remaining_bytes
            and lease.windows
            and lease.predicted_end > start
        ]
        return sorted(found, key=lambda lease: (-lease.remaining_bytes, lease.lease_id))

    def _with_yields(self, yields: Iterable[Yield], now: float) -> PacketFabric:
        fabric = self
        for each in yields:
            lease = fabric.leases[each.lease_id]
            fabric = fabric._moved((lease,), (replace(lease, windows=each.after),), now)
        return replace(fabric, ledger=self.ledger.with_windows({each.lease_id: each.after for each in yields}))

    def _is_oversold(self, fabric: PacketFabric, lease: Lease) -> bool:
        """Whether `fabric` sells more to a lease than there is, and more than this one: a port may have become narrower."""
        pairs = zip(fabric._resources(lease.pair), self._resources(lease.pair), strict=True)
        return any(
            after.sold.peak(window.start, window.end)
            > max(after.bytes_per_second, before.sold.peak(window.start, window.end))
            for after, before in pairs
            for window in lease.windows
        )

    def _search(self, demand: TransferDemand, pair: Pair, num_bytes: int) -> Search:
        narrowest = pair.max_bytes_per_second
        return Search(demand, num_bytes, max(1, int(self.max_share * narrowest)), max(1, int(MIN_SHARE * narrowest)))

    def _resources(self, pair: Pair) -> tuple[Resource, ...]:
        sold = self.profiles.get
        egress, ingress, between = _keys(pair)
        return (
            Resource(egress, pair.egress.bytes_per_second, sold(egress, _EMPTY)),
            Resource(ingress, pair.ingress.bytes_per_second, sold(ingress, _EMPTY)),
            Resource(between, pair.bytes_per_second, sold(between, _EMPTY)),
        )

    def _moved(
        self, freed: Iterable[Lease], held: Iterable[Lease], now: float, ledger: Ledger | None = None
    ) -> PacketFabric:
        """The fabric without what some leases hold and with what others do; the ledger stays as it is, or is as given."""
        profiles = dict(self.profiles)
        for leases, sign in ((freed, -1), (held, 1)):
            for lease in leases:
                holds = [(max(now, each.start), each.end, sign * each.bytes_per_second) for each in lease.windows]
                for key in _keys(lease.pair):
                    profile = profiles.pop(key, _EMPTY).pruned(now)
                    for hold in holds:
                        profile = profile.with_hold(*hold)
                    if profile.times:
                        profiles[key] = profile
        return PacketFabric(ledger or self.ledger, self.max_share, profiles)


def _room(longer: Iterable[Lease], key: Key, start: float) -> Iterator[tuple[float, float, int]]:
    """What leases on a resource hold beyond their floors after `start`, as holds."""
    for lease in longer:
        if key in _keys(lease.pair):
            for window in lease.windows:
                room = window.bytes_per_second - _floor(lease.pair)
                if room > 0 and window.end > start:
                    yield max(start, window.start), window.end, room


def _lowered(windows: Iterable[Window], within: Window, by: int, pair: Pair) -> Iterator[Window]:
    """The windows with `by` less in the time of another one, but no less than the floor. Their bytes stay uncounted."""
    for window in windows:
        start, end = max(window.start, within.start), min(window.end, within.end)
        lower = max(min(_floor(pair), window.bytes_per_second), window.bytes_per_second - by)
        if start >= end or lower >= window.bytes_per_second:
            yield window
            continue
        if window.start < start:
            yield replace(window, end=start)
        yield replace(window, start=start, ready=start, end=end, bytes_per_second=lower)
        if end < window.end:
            yield replace(window, start=end, ready=end)


def _floor(pair: Pair) -> int:
    return max(1, int(FLOOR_SHARE * pair.max_bytes_per_second))


def _keys(pair: Pair) -> tuple[Key, Key, Key]:
    source, destination = pair.names
    return ("egress", source), ("ingress", destination), ("pair", source, destination)
