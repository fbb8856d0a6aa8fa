"""What routers and the planner tell each other: what is asked, what was seen of the network, and how it is used.

Values only. Times are durations from now: the two may run on hosts whose clocks differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.pace import Pace
from transfer.planner.lease import Direction


@dataclass(frozen=True, slots=True)
class TransferAsk:
    """A `TransferDemand` as a router asks for it: the prefill begins in `start_in_s`. Workers are named as in the sight."""

    request_id: str
    source: str
    destination: str
    num_bytes: int
    produced_bytes_per_second: int
    start_in_s: float


@dataclass(frozen=True, slots=True)
class PairSight:
    """What a link between two workers carries: as its self-test found, and as measured since; 0 where it was not."""

    source: str
    destination: str
    tested_bytes_per_second: float
    measured_bytes_per_second: float


@dataclass(frozen=True, slots=True)
class NetworkSight:
    """The links that a router sees, of workers that answer."""

    pairs: tuple[PairSight, ...] = ()


@dataclass(frozen=True, slots=True)
class PortUse:
    """A port now: what it has, what is reserved, what its senders may use, what they last achieved, and its leases."""

    worker: str
    direction: Direction
    bytes_per_second: int
    reserved_bytes_per_second: int
    allowed_bytes_per_second: int
    achieved_bytes_per_second: int
    num_leases: int


@dataclass(frozen=True, slots=True)
class LeaseUse:
    """A lease now. What was achieved is what landed since the lease began, per second of that time."""

    lease_id: int
    owner: str
    request_id: str
    source: str
    destination: str
    num_bytes: int
    acknowledged_bytes: int
    pace: Pace
    achieved_bytes_per_second: float
    ends_in_s: float


@dataclass(frozen=True, slots=True)
class NetworkUse:
    """Ports and leases now, and counts since the planner began: leases held, refused, ended, and expired without news."""

    ports: tuple[PortUse, ...] = ()
    leases: tuple[LeaseUse, ...] = ()
    num_reserved: int = 0
    num_refused: int = 0
    num_released: int = 0
    num_expired: int = 0
