"""What a router asks of a planner, wherever that runs: in its own process (`own.py`) or as a service (`shared.py`).

A plan is a help, never a condition: whoever is refused one sends without it, as fast as the link lets them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from protocol.pace import Pace
from transfer.planner.network import NetworkSight, NetworkUse, TransferAsk

OnPace = Callable[[int, Pace], None]
"""Told the new pace of a lease, by its id. Called on the router's loop; must not block."""


@dataclass(frozen=True, slots=True)
class Reservation:
    """A lease as its router knows it: its id, and the pace that its sender begins with."""

    lease_id: int
    pace: Pace


class Reservations(Protocol):
    """All methods belong to one event loop."""

    async def start(self, on_pace: OnPace) -> None:
        """Begins to serve. A planner elsewhere that does not answer is tried again in the background, for ever."""
        ...

    async def reserve(self, ask: TransferAsk) -> Reservation:
        """Holds the network for a transfer. Raises `PlanRefused`, `Overloaded`, or `WorkerUnavailable` when the planner does
        not answer at once (within `RESERVE_WITHIN_S`).
        """
        ...

    def progress(self, lease_id: int, acknowledged_bytes: int) -> None:
        """Tells what has landed; keeps the lease alive. Never waits, never raises."""
        ...

    def release(self, lease_id: int) -> None:
        """Gives a lease back; one that is gone is no error. Never waits, never raises."""
        ...

    def observe(self, sight: NetworkSight) -> None:
        """Tells which workers this router sees and what their links carry. Never waits, never raises."""
        ...

    def use(self) -> NetworkUse:
        """Ports, leases and their use, as last known."""
        ...

    async def close(self) -> None:
        """Gives back all that this router holds, and ends."""
        ...


RESERVE_WITHIN_S = 0.25
"""Longer than that no request waits for a plan."""
