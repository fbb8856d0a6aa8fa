"""Which leases are held, and until when: the part of a fabric that is the same for all. A value; knows nothing of capacity."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from protocol.errors import Overloaded, PlanRefused, UnknownLease
from transfer.planner.lease import Lease, Pair, Proposal, Window


@dataclass(frozen=True, slots=True)
class LeaseTerms:
    """How long a lease lives without news (`lease_s`, renewed every third of it) and how many may be held at once."""

    lease_s: float = 10.0
    max_leases: int = 16_384

    def __post_init__(self) -> None:
        if self.lease_s <= 0.0 or self.max_leases < 1:
            raise PlanRefused(f"lease terms must be positive: {self.lease_s} s, {self.max_leases} leases")


@dataclass(frozen=True, slots=True)
class Ledger:
    """Leases by id. Ids count up and are never used twice."""

    terms: LeaseTerms = field(default_factory=LeaseTerms)
    leases: Mapping[int, Lease] = field(default_factory=dict)
    next_lease_id: int = 1

    def opened(self, proposal: Proposal, now: float) -> tuple[Ledger, Lease]:
        """The ledger with one more lease. Raises `Overloaded` at the limit."""
        if len(self.leases) >= self.terms.max_leases:
            raise Overloaded(f"the planner holds {len(self.leases)} leases, its limit; retry when transfers have ended")
        expires_at = now + self.terms.lease_s
        lease = Lease(self.next_lease_id, proposal.demand, proposal.pair, proposal.windows, expires_at)
        return Ledger(self.terms, {**self.leases, lease.lease_id: lease}, self.next_lease_id + 1), lease

    def of(self, lease_id: int) -> Lease:
        """The lease of this id. Raises `UnknownLease`."""
        if lease_id not in self.leases:
            raise UnknownLease(f"lease {lease_id} has ended or expired")
        return self.leases[lease_id]

    def renewed(self, lease: Lease, now: float, acknowledged_bytes: int = 0) -> Lease:
        """The lease after news of it: expiry put off, bytes counted; never fewer than before nor more than there are."""
        num_bytes = min(max(acknowledged_bytes, lease.acknowledged_bytes), lease.demand.num_bytes)
        return replace(lease, acknowledged_bytes=num_bytes, expires_at=now + self.terms.lease_s)

    def with_lease(self, lease: Lease) -> Ledger:
        """The ledger with this lease in place of the one of the same id."""
        return Ledger(self.terms, {**self.leases, lease.lease_id: lease}, self.next_lease_id)

    def with_windows(self, windows: Mapping[int, tuple[Window, ...]]) -> Ledger:
        """The ledger with other windows for some leases, by lease id."""
        changed = {lease_id: replace(self.leases[lease_id], windows=each) for lease_id, each in windows.items()}
        return replace(self, leases={**self.leases, **changed})

    def with_pairs(self, pairs: Mapping[tuple[str, str], Pair]) -> Ledger:
        """The ledger with other rates for the ways of its leases, by source and destination; a way not named stays."""
        changed = {
            lease_id: replace(lease, pair=pairs.get(lease.pair.names, lease.pair))
            for lease_id, lease in self.leases.items()
        }
        return replace(self, leases=changed)

    def without(self, lease_id: int) -> Ledger:
        """The ledger without a lease."""
        leases = dict(self.leases)
        leases.pop(lease_id, None)
        return Ledger(self.terms, leases, self.next_lease_id)

    def with_owner_renewed(self, owner: str, now: float) -> Ledger:
        """The ledger with the expiry of all of an owner's leases put off."""
        renewed = {
            key: self.renewed(lease, now) if lease.owner == owner else lease for key, lease in self.leases.items()
        }
        return replace(self, leases=renewed)

    def overdue(self, now: float) -> tuple[Lease, ...]:
        """Leases whose expiry has come, oldest first."""
        return tuple(lease for lease in self.leases.values() if lease.expires_at <= now)
