"""The other process of the tests over two processes: a receiver that is told over a pipe what to do. Plain bytes only."""

from __future__ import annotations

import struct
from multiprocessing.connection import Connection

from protocol.ids import WorkerId
from protocol.ticket import LandingZone
from tests.support.polling import poll_until
from transfer.arena import Arena
from transfer.nixl import NixlTransport
from transfer.transport import Arenas, PeerAddress

_FIXED = struct.Struct("<QIQ")


def address_to_bytes(address: PeerAddress) -> bytes:
    """An address as plain bytes: zone, then name and incarnation with their lengths before them, then metadata."""
    zone = address.zone or LandingZone(0, 0, 0)
    texts = [address.worker.name.encode(), address.worker.incarnation.encode()]
    head = b"".join(bytes([len(text)]) + text for text in texts)
    return _FIXED.pack(zone.base_address, zone.num_slots, zone.slot_bytes) + head + address.agent_metadata


def address_from_bytes(raw: bytes) -> PeerAddress:
    """The address that `address_to_bytes` wrote."""
    zone = LandingZone(*_FIXED.unpack_from(raw))
    texts, rest = [], raw[_FIXED.size :]
    for _ in range(2):
        texts.append(rest[1 : 1 + rest[0]].decode())
        rest = rest[1 + rest[0] :]
    return PeerAddress(WorkerId(*texts), "nixl", rest, zone if zone.num_slots else None)


def receive(pipe: Connection, num_slots: int, slot_bytes: int) -> None:
    """Shakes hands, then answers every tag with the first 64 bytes of the slot that it names, until the pipe closes.

    Whatever comes over the pipe is answered with the names of the wires.
    """
    landing = Arena(num_slots, slot_bytes)
    transport = NixlTransport(WorkerId.fresh("child"), Arenas(landing, None))
    pipe.send_bytes(address_to_bytes(transport.address()))
    transport.connect(address_from_bytes(pipe.recv_bytes()))

    def step() -> bool:
        for peer, tag in transport.notifications():
            transport.notify(peer, bytes(landing.slot(tag[0])[:64]))
        if not pipe.poll():
            return False
        try:
            pipe.recv_bytes()
        except EOFError:
            return True
        pipe.send_bytes(transport.protocols().encode())
        return False

    poll_until(step, timeout_s=60, what="the parent's end")
    transport.close()
