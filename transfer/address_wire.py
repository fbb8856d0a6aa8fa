"""A peer's KV-plane address as a protobuf message, and back."""

from __future__ import annotations

from protocol import kvferry_worker_pb2 as pb
from protocol.wire import worker_id_from_wire, worker_id_to_wire, zone_from_wire, zone_to_wire
from transfer.transport import PeerAddress


def address_to_wire(address: PeerAddress) -> pb.PeerAddress:
    """The message of an address."""
    return pb.PeerAddress(
        worker=worker_id_to_wire(address.worker),
        transport=address.transport,
        agent_metadata=address.agent_metadata,
        zone=zone_to_wire(address.zone) if address.zone is not None else None,
    )


def address_from_wire(message: pb.PeerAddress) -> PeerAddress:
    """The address that a message carries. Raises `BadRequest` when the worker's id is missing."""
    return PeerAddress(
        worker=worker_id_from_wire(message.worker),
        transport=message.transport,
        agent_metadata=message.agent_metadata,
        zone=zone_from_wire(message.zone) if message.HasField("zone") else None,
    )
