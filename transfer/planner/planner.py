"""The planner that routers call: one fabric, the ports of the workers, and what the ways between them were measured to carry.

Holds the state that the fabric's values pass through, and nothing else: no clock, no thread, no I/O. It belongs to one thread;
several routers share it through a service in front of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from protocol.errors import PlanRefused
from protocol.pace import Pace
from transfer.planner.fabric import Fabric
from transfer.planner.lease import Direction, Lease, Pair, Port, Proposal, TransferDemand
from transfer.planner.paces import Claim, least_pace, paces


class TransferPlanner:
    """Reserves the network for transfers.

    `fixed_bytes_per_second` is what an operator says that every port and pair carries; measurements then change nothing.
    """

    def __init__(self, fabric: Fabric, fixed_bytes_per_second: int | None = None) -> None:
        if fixed_bytes_per_second is not None and fixed_bytes_per_second <= 0:
            raise PlanRefused(f"a link cannot carry {fixed_bytes_per_second} bytes per second")
        self._fabric = fabric
        self._fixed = fixed_bytes_per_second
        self._ports: dict[tuple[Direction, str], Port] = {}
        self._measured: dict[tuple[str, str], int] = {}
        self._pairs: dict[tuple[str, str], Pair] = {}
        self._is_measured_anew = False

    @property
    def fixed_bytes_per_second(self) -> int | None:
        """What every port and pair carries, if an operator said so."""
        return self._fixed

    @property
    def leases(self) -> Mapping[int, Lease]:
        """All leases that are held, by id. Read only."""
        return self._fabric.leases

    @property
    def ports(self) -> tuple[Port, ...]:
        """All ports that are known."""
        return tuple(self._ports.values())

    def set_port(self, port: Port) -> None:
        """Makes a port known, or its rate another. What was sold stays sold; a narrower port sells nothing until it fits."""
        port = replace(port, bytes_per_second=self._fixed or port.bytes_per_second)
        if self._ports.get((port.direction, port.name)) != port:
            self._ports[port.direction, port.name] = port
            self._measure_anew()

    def measure(self, source: str, destination: str, bytes_per_second: float) -> None:
        """Notes the achieved rate of a pair; until the first one a pair carries what its ports do. Less than 1 says nothing."""
        if bytes_per_second >= 1.0 and self._measured.get((source, destination)) != int(bytes_per_second):
            self._measured[source, destination] = int(bytes_per_second)
            self._measure_anew()

    def forget_worker(self, name: str, now: float) -> None:
        """Takes a worker that is gone out: its ports, its measurements, and the leases to and from it."""
        for direction in Direction:
            self._ports.pop((direction, name), None)
        self._measured = {names: rate for names, rate in self._measured.items() if name not in names}
        self._pairs.clear()
        for lease in tuple(self.leases.values()):
            if name in lease.pair.names:
                self.release(lease.lease_id, now)

    def pair(self, source: str, destination: str) -> Pair:
        """The way between two workers. Raises `PlanRefused` when one of their ports is not known."""
        names = source, destination
        if (pair := self._pairs.get(names)) is None:
            egress, ingress = self._port(source, Direction.EGRESS), self._port(destination, Direction.INGRESS)
            rate = self._fixed or self._measured.get(names)
            pair = Pair(egress, ingress, rate or min(egress.bytes_per_second, ingress.bytes_per_second))
            self._pairs[names] = pair
        return pair

    def propose(self, demand: TransferDemand, now: float) -> Proposal:
        """What the demand would get now; for comparing pairs. Holds nothing. Raises `PlanRefused` for unknown ports."""
        return self._fabric_now().propose(demand, self.pair(demand.source, demand.destination), now)

    def commit(self, proposal: Proposal, now: float) -> Lease:
        """Holds what was proposed. Raises `StaleProposal` when it is no longer free, `Overloaded` at the limit of leases."""
        self._fabric, lease = self._fabric_now().commit(proposal, now)
        return lease

    def reserve(self, demand: TransferDemand, now: float) -> Lease:
        """Proposes and commits in one step, so that nothing comes between. Raises `PlanRefused` and `Overloaded`."""
        return self.commit(self.propose(demand, now), now)

    def progress(self, lease_id: int, acknowledged_bytes: int, now: float) -> Lease | None:
        """The lease as planned after `acknowledged_bytes` have landed; None at the end. Raises `UnknownLease`.

        Progress before the predicted start says that the prefill has begun: the lease is planned from now on.
        """
        held = self.leases.get(lease_id)
        if held is not None and held.demand.start > now:
            produced_s = max(acknowledged_bytes, 0) / held.demand.produced_bytes_per_second
            self.reschedule(lease_id, now - produced_s, now)
        self._fabric, lease = self._fabric_now().progress(lease_id, acknowledged_bytes, now)
        return lease

    def reschedule(self, lease_id: int, start: float, now: float) -> Lease:
        """The lease as planned for a prefill that begins at `start` instead. Raises `UnknownLease`."""
        self._fabric, lease = self._fabric_now().reschedule(lease_id, start, now)
        return lease

    def release(self, lease_id: int, now: float) -> None:
        """Gives a lease back; nothing happens if it is gone."""
        self._fabric = self._fabric.release(lease_id, now)

    def renew(self, owner: str, now: float) -> None:
        """Says that a router is alive, for all its leases."""
        self._fabric = self._fabric.renew(owner, now)

    def expire(self, now: float) -> tuple[Lease, ...]:
        """Frees and names the leases that nobody renewed in time: those of a dead router, or of a transfer it lost."""
        self._fabric, expired = self._fabric.expire(now)
        return expired

    def paces(self, now: float) -> dict[int, Pace]:
        """What every lease holds and may use at this instant, by its id, with the rates that ports have now."""
        claims = [_claim(lease, now) for lease in self._fabric_now().leases.values()]
        return paces(claims, self._fabric.lends_idle)

    def first_pace(self, lease: Lease, now: float) -> Pace:
        """The pace of a lease from those alone that share a port with it: never more than in `paces`, and soon found."""
        source, destination = lease.pair.names
        near = [
            each
            for each in self._fabric_now().leases.values()
            if (each.demand.source == source or each.demand.destination == destination) and each is not lease
        ]
        held = [(each, rate) for each in near if (rate := each.bytes_per_second(now))]
        holding = [Claim(each.lease_id, each.pair, rate) for each, rate in held]
        return least_pace(_claim(lease, now), len(near), holding, self._fabric.lends_idle)

    def _fabric_now(self) -> Fabric:
        """The fabric, its leases over ports and pairs as they were measured last."""
        if self._is_measured_anew:
            names = {lease.pair.names for lease in self.leases.values()}
            self._fabric = self._fabric.with_pairs({each: self.pair(*each) for each in names})
            self._is_measured_anew = False
        return self._fabric

    def _measure_anew(self) -> None:
        self._is_measured_anew = True
        self._pairs.clear()

    def _port(self, name: str, direction: Direction) -> Port:
        if (direction, name) not in self._ports:
            raise PlanRefused(f"the planner knows no {direction} port of {name}; the worker reports it when it starts")
        return self._ports[direction, name]


def _claim(lease: Lease, now: float) -> Claim:
    return Claim(lease.lease_id, lease.pair, lease.bytes_per_second(now))
