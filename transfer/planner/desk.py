"""The planner as routers talk to it: sights in, leases out, and who has to be told another pace.

Several routers ("owners") stand at one desk. It turns what they see into ports and pairs, what they ask into demands on its own
clock, and remembers which pace was told last, so that only changes are told. No clock, no I/O, one thread: whoever owns the
desk calls it with the time, and carries its answers to the routers.
"""

from __future__ import annotations

from protocol.errors import Overloaded, PlanRefused, UnknownLease
from protocol.pace import Pace
from transfer.planner.lease import TransferDemand
from transfer.planner.network import NetworkSight, NetworkUse, TransferAsk
from transfer.planner.planner import TransferPlanner
from transfer.planner.sight import seen_network
from transfer.planner.usage import Counts, Usage

MIN_CHANGE = 0.02
"""A rate that differs by less than this part from what was told is not told again."""
REPEAT_S = 10.0
"""A shared pace is told again after so long: senders drop one that nobody has confirmed for three times that."""


class PlannerDesk:
    """Serves routers from one planner, which nobody else may change."""

    def __init__(self, planner: TransferPlanner) -> None:
        self._planner = planner
        self._sights: dict[str, NetworkSight] = {}
        self._told: dict[int, tuple[Pace, float]] = {}
        self._usage = Usage()
        self._counts = Counts()
        self._num_unknown = 0

    @property
    def num_leases(self) -> int:
        """Leases that are held."""
        return len(self._planner.leases)

    @property
    def num_unknown(self) -> int:
        """Reports of progress that came for leases that had ended or expired."""
        return self._num_unknown

    def observe(self, owner: str, sight: NetworkSight, now: float) -> None:
        """Takes over what an owner sees now. Workers that no owner sees any more are forgotten, with their leases."""
        self._sights.pop(owner, None)
        self._sights[owner] = sight  # the newest is last, and counts
        self._look(now)

    def reserve(self, owner: str, ask: TransferAsk, now: float) -> tuple[int, Pace]:
        """Holds the network for a transfer: the lease's id and its first pace. Raises `PlanRefused` and `Overloaded`."""
        try:
            demand = TransferDemand(
                request_id=ask.request_id,
                source=ask.source,
                destination=ask.destination,
                num_bytes=ask.num_bytes,
                produced_bytes_per_second=ask.produced_bytes_per_second,
                start=now + ask.start_in_s,
                owner=owner,
            )
            lease = self._planner.reserve(demand, now)
        except (PlanRefused, Overloaded):
            self._counts.num_refused += 1
            raise
        self._counts.num_reserved += 1
        pace = self._planner.first_pace(lease, now)
        self._told[lease.lease_id] = pace, now
        return lease.lease_id, pace

    def progress(self, lease_id: int, acknowledged_bytes: int, now: float) -> None:
        """Counts what has landed and plans the rest anew; all bytes end the lease. Unknown leases are counted only."""
        before = self._planner.leases.get(lease_id)
        try:
            after = self._planner.progress(lease_id, acknowledged_bytes, now)
        except UnknownLease:
            self._num_unknown += 1
            return
        if before is not None:
            self._usage.note(before, acknowledged_bytes, now)
        if after is None:
            self._counts.num_released += 1
            self._forget(lease_id)

    def release(self, lease_id: int, now: float, acknowledged_bytes: int = 0) -> None:
        """Gives a lease back of which so much has landed, if more than was told; nothing happens if it is gone."""
        if (held := self._planner.leases.get(lease_id)) is not None:
            self._usage.note(held, acknowledged_bytes, now)
            self._planner.release(lease_id, now)
            self._counts.num_released += 1
            self._forget(lease_id)

    def leave(self, owner: str, now: float) -> None:
        """A router that goes: its leases are given back, and workers that only it saw are forgotten."""
        for lease in tuple(self._planner.leases.values()):
            if lease.owner == owner:
                self._planner.release(lease.lease_id, now)
                self._counts.num_released += 1
        if self._sights.pop(owner, None) is not None:
            self._look(now)
        self._forget_ended()

    def renew(self, owner: str, now: float) -> None:
        """A router that is alive keeps its leases."""
        self._planner.renew(owner, now)

    def changes(self, now: float) -> dict[str, list[tuple[int, Pace]]]:
        """Frees overdue leases, then says by owner which leases have another pace than they were told, or a shared one that was
        told long ago; they count as told.
        """
        expired = self._planner.expire(now)
        if expired:
            self._counts.num_expired += len(expired)
            self._forget_ended()
        found: dict[str, list[tuple[int, Pace]]] = {}
        for lease_id, pace in self._planner.paces(now).items():
            told, told_at = self._told[lease_id]
            if _is_news(told, pace) or (pace.is_shared and now - told_at >= REPEAT_S):
                self._told[lease_id] = pace, now
                found.setdefault(self._planner.leases[lease_id].owner, []).append((lease_id, pace))
        return found

    def use(self, now: float) -> NetworkUse:
        """Ports and leases at this instant, and the counts so far."""
        leases, paces = tuple(self._planner.leases.values()), self._planner.paces(now)
        return NetworkUse(
            ports=self._usage.ports(self._planner.ports, leases, paces, now),
            leases=self._usage.leases(leases, paces, now),
            num_reserved=self._counts.num_reserved,
            num_refused=self._counts.num_refused,
            num_released=self._counts.num_released,
            num_expired=self._counts.num_expired,
        )

    def _look(self, now: float) -> None:
        seen = seen_network(self._sights.values(), self._planner.fixed_bytes_per_second)
        gone = {port.name for port in self._planner.ports} - seen.workers
        num_before = self.num_leases
        for name in sorted(gone):
            self._planner.forget_worker(name, now)
        for port in seen.ports:
            self._planner.set_port(port)
        for (source, destination), rate in seen.pairs.items():
            self._planner.measure(source, destination, rate)
        self._counts.num_released += num_before - self.num_leases
        self._forget_ended()

    def _forget(self, lease_id: int) -> None:
        """One lease has ended."""
        self._told.pop(lease_id, None)
        self._usage.begun_at.pop(lease_id, None)

    def _forget_ended(self) -> None:
        held = self._planner.leases
        if len(self._told) > len(held):
            self._told = {lease_id: told for lease_id, told in self._told.items() if lease_id in held}
        self._usage.forget(held, [(port.direction, port.name) for port in self._planner.ports])


def _is_news(told: Pace, pace: Pace) -> bool:
    return (
        told.is_shared != pace.is_shared
        or _differs(told.reserved_bytes_per_second, pace.reserved_bytes_per_second)
        or _differs(told.allowed_bytes_per_second, pace.allowed_bytes_per_second)
    )


def _differs(before: float, after: float) -> bool:
    return abs(after - before) > MIN_CHANGE * (before if before > after else after)
