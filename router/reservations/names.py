"""What workers are called between a router and a planner that it shares.

In a router a worker is its name, and every cluster has a `prefill-0`. To a shared planner it is its name and its incarnation:
the same for all routers over the same workers, and nobody else's. What comes back is told by plain names where it is this
router's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from transfer.planner.network import LeaseUse, NetworkSight, NetworkUse, TransferAsk


class SharedNames:
    """Translates between the two. `full_name_of` gives the planner's name of one of this router's workers."""

    def __init__(self, full_name_of: Callable[[str], str]) -> None:
        self._full_name_of = full_name_of
        self._plain: dict[str, str] = {}

    def sight(self, sight: NetworkSight) -> NetworkSight:
        """A sight as the planner is told it; its workers are from now on this router's."""
        names = {name for pair in sight.pairs for name in (pair.source, pair.destination)}
        full = {name: self._full_name_of(name) for name in names}
        self._plain = {each: name for name, each in full.items()}
        return NetworkSight(
            tuple(replace(pair, source=full[pair.source], destination=full[pair.destination]) for pair in sight.pairs)
        )

    def ask(self, ask: TransferAsk) -> TransferAsk:
        """An ask as the planner is told it."""
        return replace(ask, source=self._full_name_of(ask.source), destination=self._full_name_of(ask.destination))

    def use(self, use: NetworkUse) -> NetworkUse:
        """The use of the network as this router tells it."""
        ports = tuple(replace(port, worker=self._of(port.worker)) for port in use.ports)
        return replace(use, ports=ports, leases=tuple(self._lease(lease) for lease in use.leases))

    def _lease(self, lease: LeaseUse) -> LeaseUse:
        return replace(lease, source=self._of(lease.source), destination=self._of(lease.destination))

    def _of(self, full_name: str) -> str:
        return self._plain.get(full_name, full_name)
