"""What every transport checks before a write or a tag leaves: peers, ranges and lengths. The checks hold no state."""

from __future__ import annotations

from protocol.errors import NotConnected, TransferError
from transfer.arena import Arena
from transfer.transport import PeerAddress, WriteRequest

MAX_TAG_BYTES = 256


def check_tag(tag: bytes) -> None:
    """Raises `TransferError` unless the tag has 1 to `MAX_TAG_BYTES` bytes."""
    if not 1 <= len(tag) <= MAX_TAG_BYTES:
        raise TransferError(f"a tag has 1 to {MAX_TAG_BYTES} bytes, got {len(tag)}")


def check_write(request: WriteRequest, outbox: Arena | None, peer: PeerAddress | None) -> Arena:
    """The outbox, if the write lies within it and within the peer's zone.

    Raises `NotConnected` for a stranger and `TransferError`, naming the number, for anything out of range.
    """
    if peer is None:
        raise NotConnected(f"{request.peer} is not connected: connect before writing to it")
    if outbox is None or peer.zone is None:
        raise TransferError(f"{request.peer} has no landing zone" if outbox is not None else "this side has no outbox")
    check_tag(request.tag)
    if not 0 <= request.local_slot < outbox.num_slots:
        raise TransferError(f"local slot {request.local_slot} of an outbox of {outbox.num_slots}")
    if not 0 <= request.remote_slot < peer.zone.num_slots:
        raise TransferError(f"remote slot {request.remote_slot} of a landing zone of {peer.zone.num_slots}")
    most_bytes = min(outbox.slot_bytes, peer.zone.slot_bytes)
    if not 1 <= request.num_bytes <= most_bytes:
        raise TransferError(f"a write has 1 to {most_bytes} bytes here, got {request.num_bytes}")
    return outbox
