"""What the router's view of its cluster says of transfers: how many, how large, how fast, and who is on which host. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Carried:
    """A planned transfer that has ended: the rate that was reserved for it, and the one at which it crossed."""

    request_id: str
    prefill: str
    num_bytes: int
    reserved_bytes_per_second: float
    achieved_bytes_per_second: float


@dataclass(frozen=True, slots=True)
class Landed:
    """What all decode workers have counted: transfers, those of them that failed, and bytes; and all prefill workers:
    transfers of each, bytes of those that ended well, and how many of these bytes were hidden.

    `planned` are the planned transfers that ended last. `are_sides_right` says whether every prefill worker is on the
    router's host and no decode worker is.
    """

    num_transfers: int
    num_failures: int
    num_bytes: int
    num_acknowledged_bytes: int
    num_hidden_bytes: int
    num_by_prefill: Mapping[str, int]
    planned: tuple[Carried, ...]
    are_sides_right: bool

    def has_more_than(self, before: Landed, num_transfers: int) -> bool:
        """Whether that many transfers have ended since, by both sides' count, or one has failed."""
        if self.num_failures > before.num_failures:
            return True
        is_sent = sum(self.num_by_prefill.values()) >= sum(before.num_by_prefill.values()) + num_transfers
        is_counted = self.num_acknowledged_bytes > before.num_acknowledged_bytes
        return is_sent and is_counted and self.num_transfers >= before.num_transfers + num_transfers

    def planned_since(self, before: Landed) -> list[Carried]:
        """Planned transfers that were not there before, smallest first."""
        known = {one.request_id for one in before.planned}
        return sorted((one for one in self.planned if one.request_id not in known), key=lambda one: one.num_bytes)

    def prefills_since(self, before: Landed) -> list[str]:
        """The prefill workers that have ended a transfer since."""
        return [name for name, num in self.num_by_prefill.items() if num > before.num_by_prefill.get(name, 0)]


def landed(view: Mapping[str, Any], host: str) -> Landed:
    """The counts in the router's view, and the sides as seen from `host`, the router's address."""
    prefills = [worker for worker in view["workers"] if worker["role"] == "prefill"]
    decodes = [worker for worker in view["workers"] if worker["role"] == "decode"]
    statuses = [worker["status"] for worker in decodes]
    return Landed(
        num_transfers=sum(one["num_transfers"] for one in statuses),
        num_failures=sum(one["num_transfer_failures"] for one in statuses),
        num_bytes=sum(one["transfer_bytes"] for one in statuses),
        num_acknowledged_bytes=sum(one["status"]["acknowledged_bytes"] for one in prefills),
        num_hidden_bytes=sum(one["status"]["hidden_bytes"] for one in prefills),
        num_by_prefill={one["name"]: one["status"]["num_transfers"] for one in prefills},
        planned=tuple(_carried(one) for one in view.get("recent_transfers", ())),
        are_sides_right=all(_is_on(one, host) for one in prefills) and not any(_is_on(one, host) for one in decodes),
    )


def _carried(fields: Mapping[str, Any]) -> Carried:
    return Carried(
        request_id=str(fields["request_id"]),
        prefill=str(fields["prefill"]),
        num_bytes=int(fields["num_bytes"]),
        reserved_bytes_per_second=float(fields["reserved_bytes_per_second"]),
        achieved_bytes_per_second=float(fields["achieved_bytes_per_second"]),
    )


def _is_on(worker: Mapping[str, Any], host: str) -> bool:
    return bool(worker["target"].rpartition(":")[0] == host)
