"""Circuits: a port has one peer at a time, and changing it takes a while. Transfers get windows.

A window holds the source's egress and the destination's ingress alone, from the order for the circuit to the end. A window that
follows another of the same pair at once finds the circuit up and pays no delay. If the one before is given back, the next one
inherits its setting up (`_without_window`). A circuit that nobody holds counts as torn down.

The table and the filling of gaps are Sunflow's (CoNEXT 2016), see `circuit_search.py`. Sliding, re-queueing and inheriting are
this project's own (inferred from what a prefill does to a plan). Pure: no clock, no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from protocol.errors import StaleProposal
from transfer.planner.circuit_search import CircuitRules, Rest, are_in_time, as_late_as_may_be, place
from transfer.planner.lease import Lease, Pair, Proposal, TransferDemand, Window, check_pair, room_bytes
from transfer.planner.ledger import Ledger
from transfer.planner.timeline import Booking, Timeline, gaps

_Key = tuple[str, str]
_EMPTY = Timeline()
_ROUNDING_S = 1e-6
"""Below this, times that were computed differently are the same: a double counts seconds since 1970 in quarter microseconds."""


@dataclass(frozen=True, slots=True)
class CircuitFabric:
    """A switch of circuits; see `fabric.Fabric` for what the methods promise."""

    rules: CircuitRules
    ledger: Ledger = field(default_factory=Ledger)
    timelines: Mapping[_Key, Timeline] = field(default_factory=dict)

    @property
    def lends_idle(self) -> bool:
        """Nothing crosses but in a window, and that is nobody else's."""
        return False

    @property
    def leases(self) -> Mapping[int, Lease]:
        """All leases that are held."""
        return self.ledger.leases

    def propose(self, demand: TransferDemand, pair: Pair, now: float) -> Proposal:
        """The earliest windows that are free. Walks the bookings after the demand's start once."""
        check_pair(demand, pair)
        return Proposal(demand, pair, self._placed(demand, pair, demand.num_bytes, now))

    def commit(self, proposal: Proposal, now: float) -> tuple[CircuitFabric, Lease]:
        """Books the proposed windows, unless their time has come or another lease took it since."""
        if not all(self._can_book(proposal.pair, window, now) for window in proposal.windows):
            raise StaleProposal(f"a window proposed to request {proposal.demand.request_id} is taken; propose again")
        ledger, lease = self.ledger.opened(proposal, now)
        return replace(self, ledger=ledger)._with_windows(lease, lease.windows, now), lease

    def progress(self, lease_id: int, acknowledged_bytes: int, now: float) -> tuple[CircuitFabric, Lease | None]:
        """Leaves a lease that is on time as it is; makes room for what its windows can no longer carry.

        The last window is made longer if the next reservation allows; otherwise what is missing gets other windows, and if
        the transfer would be cut into too many, all of it is placed anew.
        """
        lease = self.ledger.renewed(self.ledger.of(lease_id), now, acknowledged_bytes)
        if lease.remaining_bytes == 0:
            return self.release(lease_id, now), None
        kept = tuple(window for window in lease.windows if window.end > now)
        missing = math.ceil(lease.remaining_bytes - room_bytes(kept, now))
        if kept and missing < self.rules.min_slice_bytes:
            lease = replace(lease, windows=kept)
            return replace(self, ledger=self.ledger.with_lease(lease)), lease
        return self._with_room(replace(lease, windows=kept), missing, now)

    def reschedule(self, lease_id: int, start: float, now: float) -> tuple[CircuitFabric, Lease]:
        """Late: the window slides if the next reservation allows, else all is placed anew. Early: earlier windows, if free.

        Where nothing earlier is free an early prefill keeps its windows, and may send from `Window.ready` on: as soon as the
        circuit is up. A lease of several windows does not slide.
        """
        lease = self.ledger.renewed(self.ledger.of(lease_id), now)
        is_late = start > lease.demand.start
        kept = tuple(window for window in lease.windows if window.end > now)
        lease = replace(lease, demand=replace(lease.demand, start=start), windows=kept)
        stayed = replace(self, ledger=self.ledger.with_lease(lease)), lease
        if not is_late or not kept:
            moved = self._placed_anew(lease, now)
            return stayed if kept and moved[1].predicted_end >= lease.predicted_end - _ROUNDING_S else moved
        rest = Rest(lease.demand, lease.remaining_bytes, kept[-1].bytes_per_second)
        if are_in_time(kept, rest):
            return stayed
        end = max(kept[-1].end, rest.full_end(max(now, kept[-1].ready)))
        if len(kept) > 1 or not self._is_free_after(lease, end):
            return self._placed_anew(lease, now)
        return self._with_last_window(lease, replace(kept[-1], end=end, num_bytes=lease.remaining_bytes), now)

    def release(self, lease_id: int, now: float) -> CircuitFabric:
        """Gives the ports back at once."""
        if lease_id not in self.leases:
            return self
        freed = self._without_windows(lease_id, now)
        return replace(freed, ledger=freed.ledger.without(lease_id))

    def with_pairs(self, pairs: Mapping[tuple[str, str], Pair]) -> CircuitFabric:
        """Windows placed from now on have the new rates."""
        return replace(self, ledger=self.ledger.with_pairs(pairs))

    def renew(self, owner: str, now: float) -> CircuitFabric:
        """Puts off the expiry of an owner's leases. Windows stay as booked."""
        return replace(self, ledger=self.ledger.with_owner_renewed(owner, now))

    def expire(self, now: float) -> tuple[CircuitFabric, tuple[Lease, ...]]:
        """Frees what nobody renewed."""
        overdue, fabric = self.ledger.overdue(now), self
        for lease in overdue:
            fabric = fabric.release(lease.lease_id, now)
        return fabric, overdue

    def _placed(
        self, demand: TransferDemand, pair: Pair, num_bytes: int, now: float, max_windows: int = 0
    ) -> tuple[Window, ...]:
        rest = Rest(demand, num_bytes, pair.max_bytes_per_second)
        egress, ingress = (self.timelines.get(key, _EMPTY) for key in _keys(pair))
        free = gaps(egress, ingress, pair.names, now, max(now, rest.first_byte_at))
        return place(rest, self.rules, free, max_windows or self.rules.max_windows)

    def _can_book(self, pair: Pair, window: Window, now: float) -> bool:
        ports = [self.timelines.get(key, _EMPTY) for key in _keys(pair)]
        is_set_up = window.ready - window.start >= self.rules.reconfiguration_s - _ROUNDING_S or all(
            (before := port.ending_at(window.start)) is not None and before.names == pair.names for port in ports
        )
        return window.start >= now and is_set_up and all(port.is_free(window.start, window.end) for port in ports)

    def _is_free_after(self, lease: Lease, end: float) -> bool:
        ports = (self.timelines.get(key, _EMPTY) for key in _keys(lease.pair))
        return all(port.next_start(lease.windows[-1].end) >= end for port in ports)

    def _with_room(self, lease: Lease, missing: int, now: float) -> tuple[CircuitFabric, Lease]:
        """Room for bytes that the lease's windows, none of them over, cannot carry."""
        fabric = replace(self, ledger=self.ledger.with_lease(lease))
        if not lease.windows:
            return fabric._placed_anew(lease, now)
        last = lease.windows[-1]
        end = last.end + missing / last.bytes_per_second
        if self._is_free_after(lease, end):
            return fabric._with_last_window(lease, replace(last, end=end, num_bytes=last.num_bytes + missing), now)
        num_more = self.rules.max_windows - len(lease.windows)
        if num_more < 1:
            return fabric._placed_anew(lease, now)
        more = self._placed(lease.demand, lease.pair, missing, now, num_more)
        longer = replace(lease, windows=tuple(sorted((*lease.windows, *more), key=lambda window: window.start)))
        fabric = replace(self, ledger=self.ledger.with_lease(longer))
        return fabric._with_windows(longer, more, now), longer

    def _with_last_window(self, lease: Lease, held: Window, now: float) -> tuple[CircuitFabric, Lease]:
        window = as_late_as_may_be(held, now, self.rules.reconfiguration_s)
        fabric = self._with_timelines(lease.pair.names, now, removed=_booking(lease, lease.windows[-1]))
        moved = replace(lease, windows=(*lease.windows[:-1], window))
        fabric = replace(fabric, ledger=fabric.ledger.with_lease(moved))
        return fabric._with_windows(moved, (window,), now), moved

    def _placed_anew(self, lease: Lease, now: float) -> tuple[CircuitFabric, Lease]:
        freed = self._without_windows(lease.lease_id, now)
        moved = replace(lease, windows=freed._placed(lease.demand, lease.pair, lease.remaining_bytes, now))
        fabric = replace(freed, ledger=freed.ledger.with_lease(moved))
        return fabric._with_windows(moved, moved.windows, now), moved

    def _with_windows(self, lease: Lease, windows: tuple[Window, ...], now: float) -> CircuitFabric:
        fabric = self
        for window in windows:
            fabric = fabric._with_timelines(lease.pair.names, now, added=_booking(lease, window))
        return fabric

    def _without_windows(self, lease_id: int, now: float) -> CircuitFabric:
        """Frees all windows of a lease, the last first: what inherits one may inherit the one before as well."""
        fabric = self
        lease = self.leases[lease_id]
        for window in reversed(lease.windows):
            fabric = fabric._without_window(_booking(lease, window), now)
        return fabric

    def _without_window(self, booking: Booking, now: float) -> CircuitFabric:
        """Frees a window. One of the same pair that relied on its circuit takes over what it needs of the time before."""
        fabric = self._with_timelines(booking.names, now, removed=booking)
        window = booking.window
        heir = fabric.timelines.get(("egress", booking.names[0]), _EMPTY).starting_at(window.end)
        if window.end <= now or heir is None or heir.names != booking.names or heir.window.ready > heir.window.start:
            return fabric
        held = replace(heir.window, start=window.start, ready=window.ready)
        inherited = replace(heir, window=as_late_as_may_be(held, now, self.rules.reconfiguration_s))
        lease = fabric.leases[heir.lease_id]
        windows = tuple(inherited.window if each == heir.window else each for each in lease.windows)
        fabric = replace(fabric, ledger=fabric.ledger.with_lease(replace(lease, windows=windows)))
        return fabric._with_timelines(heir.names, now, removed=heir, added=inherited)

    def _with_timelines(
        self, names: tuple[str, str], now: float, removed: Booking | None = None, added: Booking | None = None
    ) -> CircuitFabric:
        timelines = dict(self.timelines)
        for key in (("egress", names[0]), ("ingress", names[1])):
            timeline = timelines.pop(key, _EMPTY)
            timeline = timeline.without(removed) if removed else timeline
            timeline = timeline.with_booking(added) if added else timeline
            timeline = timeline.pruned(now)
            if timeline.bookings:
                timelines[key] = timeline
        return replace(self, timelines=timelines)


def _booking(lease: Lease, window: Window) -> Booking:
    return Booking(window, lease.lease_id, lease.pair.names)


def _keys(pair: Pair) -> tuple[_Key, _Key]:
    source, destination = pair.names
    return ("egress", source), ("ingress", destination)
