"""How the network is used: what ports achieved in the last seconds, since when leases send, and the values that show it.

Memory only: no clock, no I/O. Knows what was acknowledged, not what was sent.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from protocol.pace import Pace
from transfer.planner.lease import Direction, Lease, Port
from transfer.planner.network import LeaseUse, PortUse

ACHIEVED_WINDOW_S = 2.0
"""What a port achieved is taken over this time: some reports of each transfer."""
_NUM_SLOTS = 8
_SLOT_S = ACHIEVED_WINDOW_S / _NUM_SLOTS

PortKey = tuple[Direction, str]


@dataclass(slots=True)
class Counts:
    """Leases since the planner began."""

    num_reserved: int = 0
    num_refused: int = 0
    num_released: int = 0
    num_expired: int = 0


@dataclass(slots=True)
class Usage:
    """What has landed, by port in slots of time (at most `_NUM_SLOTS` of each are kept), and when each lease began to send."""

    landed: dict[PortKey, dict[int, int]] = field(default_factory=dict)
    begun_at: dict[int, float] = field(default_factory=dict)

    def note(self, before: Lease, acknowledged_bytes: int, now: float) -> None:
        """Counts what landed of a lease since it was `before`."""
        self.begun_at.setdefault(before.lease_id, now)
        num_bytes = min(acknowledged_bytes, before.demand.num_bytes) - before.acknowledged_bytes
        if num_bytes <= 0:
            return
        slot = int(now // _SLOT_S)
        for port in (before.pair.egress, before.pair.ingress):
            slots = self.landed.get((port.direction, port.name), {})
            kept = {each: landed for each, landed in slots.items() if each > slot - _NUM_SLOTS}
            kept[slot] = kept.get(slot, 0) + num_bytes
            self.landed[port.direction, port.name] = kept

    def forget(self, lease_ids: Iterable[int], ports: Iterable[PortKey]) -> None:
        """Keeps what is known of these leases and ports, and nothing of others."""
        held, known = set(lease_ids), set(ports)
        self.begun_at = {lease_id: at for lease_id, at in self.begun_at.items() if lease_id in held}
        self.landed = {key: slots for key, slots in self.landed.items() if key in known}

    def achieved_bytes_per_second(self, key: PortKey, now: float) -> int:
        """What landed over a port in the last `ACHIEVED_WINDOW_S`, per second."""
        newest = int(now // _SLOT_S)
        slots = self.landed.get(key, {})
        return int(sum(landed for slot, landed in slots.items() if slot > newest - _NUM_SLOTS) / ACHIEVED_WINDOW_S)

    def leases(self, leases: Iterable[Lease], paces: Mapping[int, Pace], now: float) -> tuple[LeaseUse, ...]:
        """The leases as they are shown. What was achieved counts from a lease's first report."""
        return tuple(
            LeaseUse(
                lease_id=lease.lease_id,
                owner=lease.owner,
                request_id=lease.demand.request_id,
                source=lease.demand.source,
                destination=lease.demand.destination,
                num_bytes=lease.demand.num_bytes,
                acknowledged_bytes=lease.acknowledged_bytes,
                pace=paces[lease.lease_id],
                achieved_bytes_per_second=self._achieved(lease, now),
                ends_in_s=max(0.0, lease.predicted_end - now),
            )
            for lease in leases
        )

    def ports(
        self, ports: Iterable[Port], leases: Iterable[Lease], paces: Mapping[int, Pace], now: float
    ) -> tuple[PortUse, ...]:
        """The ports as they are shown, by name, with the sums over their leases."""
        sums: dict[PortKey, tuple[float, float, int]] = {}
        for lease in leases:
            pace = paces[lease.lease_id]
            for port in (lease.pair.egress, lease.pair.ingress):
                reserved, allowed, num_leases = sums.get((port.direction, port.name), (0.0, 0.0, 0))
                sums[port.direction, port.name] = (
                    reserved + pace.reserved_bytes_per_second,
                    allowed + pace.allowed_bytes_per_second,
                    num_leases + 1,
                )
        shown = []
        for port in sorted(ports, key=lambda each: (each.name, each.direction)):
            key = port.direction, port.name
            reserved, allowed, num_leases = sums.get(key, (0.0, 0.0, 0))
            achieved = self.achieved_bytes_per_second(key, now)
            shown.append(
                PortUse(*key[::-1], port.bytes_per_second, round(reserved), round(allowed), achieved, num_leases)
            )
        return tuple(shown)

    def _achieved(self, lease: Lease, now: float) -> float:
        seconds = now - self.begun_at.get(lease.lease_id, now)
        return lease.acknowledged_bytes / seconds if seconds > 0.0 else 0.0
