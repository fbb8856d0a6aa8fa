"""What routers and the planner tell each other, as protobuf messages and back. Reading validates: a legal value or an error."""

from __future__ import annotations

import math

from protocol import kvferry_planner_pb2 as pb
from protocol.errors import BadRequest, KvferryError
from protocol.wire import pace_from_wire, pace_to_wire
from transfer.planner.lease import Direction
from transfer.planner.network import LeaseUse, NetworkSight, NetworkUse, PairSight, PortUse, TransferAsk

MAX_LISTED_LEASES = 1000
"""Leases of a `NetworkUse` that cross, the oldest: who looks at more than that looks at the ports' sums."""


def ask_to_wire(number: int, ask: TransferAsk) -> pb.ReserveAsk:
    """The message of an ask under the router's `number`."""
    return pb.ReserveAsk(
        number=number,
        request_id=ask.request_id,
        source=ask.source,
        destination=ask.destination,
        num_bytes=max(ask.num_bytes, 0),
        produced_bytes_per_second=max(ask.produced_bytes_per_second, 0),
        start_in_s=ask.start_in_s,
    )


def ask_from_wire(message: pb.ReserveAsk) -> TransferAsk:
    """The ask that a message carries. Raises `BadRequest` for a start that is no time."""
    if not math.isfinite(message.start_in_s):
        raise BadRequest(f"request {message.request_id} starts in {message.start_in_s} s, which is no time")
    return TransferAsk(
        request_id=message.request_id,
        source=message.source,
        destination=message.destination,
        num_bytes=message.num_bytes,
        produced_bytes_per_second=message.produced_bytes_per_second,
        start_in_s=message.start_in_s,
    )


def sight_to_wire(sight: NetworkSight) -> pb.NetworkSight:
    """The message of what a router sees."""
    return pb.NetworkSight(
        pairs=[
            pb.PairSight(
                source=pair.source,
                destination=pair.destination,
                tested_bytes_per_second=pair.tested_bytes_per_second,
                measured_bytes_per_second=pair.measured_bytes_per_second,
            )
            for pair in sight.pairs
        ]
    )


def sight_from_wire(message: pb.NetworkSight) -> NetworkSight:
    """What a router sees. Raises `BadRequest` for a pair without names, or with a rate that is none."""
    return NetworkSight(tuple(_pair_from_wire(pair) for pair in message.pairs))


def _pair_from_wire(message: pb.PairSight) -> PairSight:
    if not message.source or not message.destination:
        raise BadRequest("a pair of workers needs the names of both")
    rates = (message.tested_bytes_per_second, message.measured_bytes_per_second)
    if not all(math.isfinite(rate) and rate >= 0.0 for rate in rates):
        raise BadRequest(f"{message.source} -> {message.destination} was seen to carry {rates} bytes per second")
    return PairSight(message.source, message.destination, *rates)


def use_to_wire(use: NetworkUse) -> pb.NetworkUse:
    """The message of how the network is used; of its leases the first `MAX_LISTED_LEASES`."""
    return pb.NetworkUse(
        ports=[_port_to_wire(port) for port in use.ports],
        leases=[_lease_to_wire(lease) for lease in use.leases[:MAX_LISTED_LEASES]],
        num_reserved=use.num_reserved,
        num_refused=use.num_refused,
        num_released=use.num_released,
        num_expired=use.num_expired,
    )


def use_from_wire(message: pb.NetworkUse) -> NetworkUse:
    """How the network is used. Raises `BadRequest` for a direction or a pace that is none."""
    return NetworkUse(
        ports=tuple(_port_from_wire(port) for port in message.ports),
        leases=tuple(_lease_from_wire(lease) for lease in message.leases),
        num_reserved=message.num_reserved,
        num_refused=message.num_refused,
        num_released=message.num_released,
        num_expired=message.num_expired,
    )


def refusal_to_wire(number: int, error: KvferryError) -> pb.Refusal:
    """The message that answers an ask with an error."""
    return pb.Refusal(number=number, code=error.code, message=error.message)


def _port_to_wire(port: PortUse) -> pb.PortUse:
    return pb.PortUse(
        worker=port.worker,
        direction=port.direction.value,
        bytes_per_second=port.bytes_per_second,
        reserved_bytes_per_second=port.reserved_bytes_per_second,
        allowed_bytes_per_second=port.allowed_bytes_per_second,
        achieved_bytes_per_second=port.achieved_bytes_per_second,
        num_leases=port.num_leases,
    )


def _port_from_wire(message: pb.PortUse) -> PortUse:
    try:
        direction = Direction(message.direction)
    except ValueError:
        raise BadRequest(f"{message.direction!r} is no direction of a port: one of {', '.join(Direction)}") from None
    return PortUse(
        worker=message.worker,
        direction=direction,
        bytes_per_second=message.bytes_per_second,
        reserved_bytes_per_second=message.reserved_bytes_per_second,
        allowed_bytes_per_second=message.allowed_bytes_per_second,
        achieved_bytes_per_second=message.achieved_bytes_per_second,
        num_leases=message.num_leases,
    )


def _lease_to_wire(lease: LeaseUse) -> pb.LeaseUse:
    return pb.LeaseUse(
        lease_id=lease.lease_id,
        owner=lease.owner,
        request_id=lease.request_id,
        source=lease.source,
        destination=lease.destination,
        num_bytes=lease.num_bytes,
        acknowledged_bytes=lease.acknowledged_bytes,
        pace=pace_to_wire(lease.pace),
        achieved_bytes_per_second=lease.achieved_bytes_per_second,
        ends_in_s=lease.ends_in_s,
    )


def _lease_from_wire(message: pb.LeaseUse) -> LeaseUse:
    return LeaseUse(
        lease_id=message.lease_id,
        owner=message.owner,
        request_id=message.request_id,
        source=message.source,
        destination=message.destination,
        num_bytes=message.num_bytes,
        acknowledged_bytes=message.acknowledged_bytes,
        pace=pace_from_wire(message.pace),
        achieved_bytes_per_second=message.achieved_bytes_per_second,
        ends_in_s=message.ends_in_s,
    )
