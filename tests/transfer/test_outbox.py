"""The outbox over the local transport: slots come back, links are measured, failures name their transfer."""

from __future__ import annotations

import pytest

from protocol.errors import TransferError
from protocol.ids import WorkerId
from transfer.arena import PAGE_BYTES, Arena
from transfer.local import LocalFabric, LocalTransport
from transfer.outbox import Destination, Outbox
from transfer.transport import Arenas

KEY = ("decode-0@b", 5)
PEER = WorkerId("decode-0", "b")


class Harbour:
    """An outbox of two slots and a landing zone of two, on one fabric."""

    def __init__(self) -> None:
        self.fabric = LocalFabric()
        self.landing = Arena(2, PAGE_BYTES)
        receiver = LocalTransport(PEER, Arenas(landing=self.landing, outbox=None), self.fabric)
        arena = Arena(2, PAGE_BYTES)
        transport = LocalTransport(WorkerId("prefill-0", "a"), Arenas(landing=None, outbox=arena), self.fabric)
        transport.connect(receiver.address())
        self.outbox = Outbox(transport, arena)


def _fill(slot: memoryview) -> tuple[int, bytes]:
    slot[:3] = b"kv!"
    return 3, b"tag"


def _refuse(slot: memoryview) -> tuple[int, bytes]:
    raise TransferError("cannot be packed")


def test_a_write_lands_and_gives_its_slot_back() -> None:
    """Its transfer is busy and its slot lent until the write is terminal; then the link is known."""
    harbour = Harbour()
    outbox = harbour.outbox
    harbour.fabric.faults.hold()
    assert outbox.send(Destination(KEY, PEER, 1), _fill) == 3
    assert outbox.settle() == (0, [])
    assert outbox.busy_keys == {KEY}
    assert outbox.slots.num_free == 1
    harbour.fabric.faults.release()
    assert outbox.settle() == (1, [])
    assert bytes(harbour.landing.slot(1)[:3]) == b"kv!"
    assert outbox.busy_keys == set()
    assert outbox.slots.num_free == 2
    assert set(outbox.links) == {PEER}
    outbox.forget(PEER)
    assert not outbox.links


def test_a_failed_write_names_its_transfer() -> None:
    """The slot is free and nothing is learned of the link."""
    harbour = Harbour()
    harbour.fabric.faults.fail_write()
    harbour.outbox.send(Destination(KEY, PEER, 0), _fill)
    assert harbour.outbox.settle() == (1, [KEY])
    assert harbour.outbox.slots.num_free == 2
    assert not harbour.outbox.links


def test_what_cannot_be_packed_leaves_no_slot_behind() -> None:
    """The error comes through, and nothing is in flight."""
    outbox = Harbour().outbox
    with pytest.raises(TransferError, match="packed"):
        outbox.send(Destination(KEY, PEER, 0), _refuse)
    assert outbox.slots.num_free == 2
    assert outbox.busy_keys == set()
