"""What is asked of the network, what it offers, and what it has promised: ports, demands, windows, proposals and leases.

Values only. Times are seconds on the caller's clock, rates are whole bytes per second: sums of whole numbers are exact, so that
what is sold and given back leaves nothing behind. Knows no fabric: a lease of packet links and one of circuits look the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from protocol.errors import PlanRefused


class Direction(StrEnum):
    """Which way the bytes of a port go, seen from its worker."""

    EGRESS = "egress"
    INGRESS = "ingress"


@dataclass(frozen=True, slots=True)
class Port:
    """One direction of one worker's attachment to the network. Raises `PlanRefused` for a rate that is not positive."""

    name: str
    direction: Direction
    bytes_per_second: int

    def __post_init__(self) -> None:
        _require(self.bytes_per_second > 0, f"port {self.name} ({self.direction}) needs a positive rate")


@dataclass(frozen=True, slots=True)
class Pair:
    """A way from one worker to another: both ports, and what the way between them has been measured to carry."""

    egress: Port
    ingress: Port
    bytes_per_second: int

    def __post_init__(self) -> None:
        _require(
            self.egress.direction is Direction.EGRESS, f"{self.egress.name} would send by its {self.egress.direction}"
        )
        _require(
            self.ingress.direction is Direction.INGRESS,
            f"{self.ingress.name} would land by its {self.ingress.direction}",
        )
        _require(
            self.bytes_per_second > 0, f"the way from {self.egress.name} to {self.ingress.name} needs a positive rate"
        )

    @property
    def names(self) -> tuple[str, str]:
        """Source and destination: what makes two pairs the same way."""
        return self.egress.name, self.ingress.name

    @property
    def max_bytes_per_second(self) -> int:
        """What one transfer can reach when nobody else is there."""
        return min(self.egress.bytes_per_second, self.ingress.bytes_per_second, self.bytes_per_second)


@dataclass(frozen=True, slots=True)
class TransferDemand:
    """What a dispatch asks: `num_bytes` from `source` to `destination`, produced at a known rate from `start` on.

    The bytes come from the prompt's tokens, the KV layout, the prefix that the destination has already and the precision
    budget; the rate is the one at which the prefill is predicted to produce them, so that a transfer at this rate ends one
    chunk after the prefill. `owner` is the router that asks. Raises `PlanRefused` for a demand without bytes or rate.
    """

    request_id: str
    source: str
    destination: str
    num_bytes: int
    produced_bytes_per_second: int
    start: float
    owner: str

    def __post_init__(self) -> None:
        _require(self.num_bytes > 0, f"request {self.request_id} has nothing to transfer: it needs no lease")
        _require(self.produced_bytes_per_second > 0, f"request {self.request_id} needs a positive rate of production")
        _require(math.isfinite(self.start), f"request {self.request_id} needs a finite start")

    @property
    def produced_at(self) -> float:
        """When the prefill is predicted to have produced the last byte."""
        return self.start + self.num_bytes / self.produced_bytes_per_second


@dataclass(frozen=True, slots=True)
class Window:
    """A part of a transfer's time: ports are held in `[start, end)`, bytes may flow in `[ready, end)`.

    `ready` is later than `start` by the time that a circuit takes to set up; on packet links they are the same. `num_bytes` is
    how much of the transfer is planned into the window, at most what its rate carries after `ready`.
    """

    start: float
    ready: float
    end: float
    bytes_per_second: int
    num_bytes: int

    def room_bytes(self, now: float) -> float:
        """What the window can still carry from `now` on."""
        return max(0.0, self.end - max(self.ready, now)) * self.bytes_per_second


@dataclass(frozen=True, slots=True)
class Yield:
    """A lease that makes room for a shorter transfer: its windows as they are (`before`) and as they would be (`after`)."""

    lease_id: int
    before: tuple[Window, ...]
    after: tuple[Window, ...]


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a fabric would promise for a demand over a pair, and who would yield. Holds nothing until it is committed."""

    demand: TransferDemand
    pair: Pair
    windows: tuple[Window, ...]
    yields: tuple[Yield, ...] = ()

    @property
    def ready(self) -> float:
        """When the first byte can cross."""
        return self.windows[0].ready

    @property
    def predicted_end(self) -> float:
        """When the last byte has crossed, if prefill and network keep to the plan."""
        return self.windows[-1].end

    @property
    def tail_s(self) -> float:
        """How long the transfer is predicted to go on after the prefill has produced its last byte."""
        return max(0.0, self.predicted_end - self.demand.produced_at)


@dataclass(frozen=True, slots=True)
class Lease:
    """A promise that is held. Renewed by progress or its owner, freed by its end, `release`, or its expiry.

    `windows` are in order of time and hold what is left to send; a window that is over is forgotten when progress is reported.
    """

    lease_id: int
    demand: TransferDemand
    pair: Pair
    windows: tuple[Window, ...]
    expires_at: float
    acknowledged_bytes: int = 0

    @property
    def owner(self) -> str:
        """The router that holds the lease."""
        return self.demand.owner

    @property
    def remaining_bytes(self) -> int:
        """What has not been acknowledged."""
        return self.demand.num_bytes - self.acknowledged_bytes

    @property
    def ready(self) -> float:
        """When the first byte of what is left can cross."""
        return self.windows[0].ready

    @property
    def predicted_end(self) -> float:
        """When the last byte has crossed, if prefill and network keep to the plan."""
        return self.windows[-1].end

    def bytes_per_second(self, now: float) -> int:
        """The rate that is held for the lease at `now`; 0 outside its windows."""
        for each in self.windows:
            if each.ready <= now < each.end:
                return each.bytes_per_second
        return 0


def room_bytes(windows: Sequence[Window], now: float) -> float:
    """What these windows can still carry from `now` on."""
    return sum(each.room_bytes(now) for each in windows)


def check_pair(demand: TransferDemand, pair: Pair) -> None:
    """Raises `PlanRefused` unless the pair's ports are those of the demand's workers."""
    wanted = (demand.source, demand.destination)
    _require(
        pair.names == wanted, f"request {demand.request_id} goes from {wanted[0]} to {wanted[1]}, not {pair.names}"
    )


def _require(is_right: bool, message: str) -> None:
    if not is_right:
        raise PlanRefused(message)
