"""What the planner asks of a network. A fabric is a value: whatever changes it returns another one and leaves it as it was.

Two networks are known: links that share their rate (`packet.py`) and circuits with one peer at a time (`circuit.py`). Neither
has a clock: every call says what time it is, and time never goes back from call to call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, Self

from transfer.planner.lease import Lease, Pair, Proposal, TransferDemand


class Fabric(Protocol):
    """Sells the capacity of ports over time. Never sells more than a port has at any instant."""

    @property
    def lends_idle(self) -> bool:
        """Whether a lease may use what nobody reserved, also outside its windows. A circuit cannot: it has one peer."""
        ...

    @property
    def leases(self) -> Mapping[int, Lease]:
        """All leases that are held, by lease id. Read only."""
        ...

    def propose(self, demand: TransferDemand, pair: Pair, now: float) -> Proposal:
        """The best that can be had now, and who would yield for it. Holds nothing.

        The same fabric, demand, pair and time give the same answer. Raises `PlanRefused` when the pair is not the demand's.
        """
        ...

    def commit(self, proposal: Proposal, now: float) -> tuple[Self, Lease]:
        """Holds what was proposed, and has the leases that it names yield.

        Raises `StaleProposal` if it is no longer free or one of them has changed, `Overloaded` at the limit of leases; then
        nothing has changed.
        """
        ...

    def progress(self, lease_id: int, acknowledged_bytes: int, now: float) -> tuple[Self, Lease | None]:
        """Renews a lease and fits its windows to what is left; None when all bytes are there and the lease is given back.

        `acknowledged_bytes` counts from the start of the transfer; fewer than last time change nothing. A lease that can end
        earlier or is late gets other windows, so that callers read them from the answer; longer leases may yield to it.
        Raises `UnknownLease`.
        """
        ...

    def reschedule(self, lease_id: int, start: float, now: float) -> tuple[Self, Lease]:
        """Fits a lease to a prefill that begins (or, by its pace, seems to have begun) at `start`. Raises `UnknownLease`."""
        ...

    def release(self, lease_id: int, now: float) -> Self:
        """Gives back what is left of a lease at once. A lease that is gone already is no error: both ends may release it."""
        ...

    def with_pairs(self, pairs: Mapping[tuple[str, str], Pair]) -> Self:
        """The same leases over ways that were measured anew, by source and destination. What was sold stays sold."""
        ...

    def renew(self, owner: str, now: float) -> Self:
        """Puts off the expiry of all leases of an owner that is alive."""
        ...

    def expire(self, now: float) -> tuple[Self, tuple[Lease, ...]]:
        """Frees the leases that nobody renewed in time, and says which they were."""
        ...
