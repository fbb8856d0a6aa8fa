"""The outbox over the local transport: slots come back, links are measured, failures name their transfer."""

from __future__ import annotations

import pytest

from protocol.errors import TransferError
from protocol.ids import WorkerId
from tests.support.clock import FakeClock
from transfer.arena import PAGE_BYTES, Arena
from transfer.local import LocalFabric, LocalTransport
from transfer.local_wire import RatedWire
from transfer.outbox import Destination, Outbox
from transfer.transport import Arenas

KEY = ("decode-0@b", 5)
PEER = WorkerId("decode-0", "b")


class Harbour:
    """An outbox of two slots and a landing zone of two, on one fabric."""

    def __init__(self, bytes_per_second: float | None = None, slot_bytes: int = PAGE_BYTES) -> None:
        self.clock = FakeClock()
        self.fabric = LocalFabric(None if bytes_per_second is None else RatedWire(bytes_per_second, self.clock))
        self.landing = Arena(2, slot_bytes)
        receiver = LocalTransport(PEER, Arenas(landing=self.landing, outbox=None), self.fabric)
        arena = Arena(2, slot_bytes)
        transport = LocalTransport(WorkerId("prefill-0", "a"), Arenas(landing=None, outbox=arena), self.fabric)
        transport.connect(receiver.address())
        self.outbox = Outbox(transport, arena, self.clock)

    def drain(self) -> None:
        """Lets time pass until nothing is in flight."""
        while self.outbox.busy_keys:
            self.clock.advance(0.001)
            self.outbox.settle()


def _fill(slot: memoryview) -> tuple[int, bytes]:
    slot[:3] = b"kv!"
    return 3, b"tag"


def _fill_whole(slot: memoryview) -> tuple[int, bytes]:
    return len(slot), b"tag"


def _refuse(slot: memoryview) -> tuple[int, bytes]:
    raise TransferError("cannot be packed")


def test_a_write_lands_and_gives_its_slot_back() -> None:
    """Its transfer is busy and its slot lent until the write is terminal; so few bytes measure nothing."""
    harbour = Harbour()
    outbox = harbour.outbox
    harbour.fabric.faults.hold()
    assert outbox.send(Destination(KEY, PEER, 1), _fill) == 3
    assert outbox.settle() == (0, [])
    assert outbox.busy_keys == {KEY}
    assert outbox.in_flight(KEY) == (1, 3)
    assert outbox.slots.num_free == 1
    harbour.fabric.faults.release()
    assert outbox.settle() == (1, [])
    assert bytes(harbour.landing.slot(1)[:3]) == b"kv!"
    assert outbox.busy_keys == set()
    assert outbox.in_flight(KEY) == (0, 0)
    assert outbox.slots.num_free == 2
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


@pytest.mark.parametrize("num_writes", [1, 2])
def test_a_link_is_as_fast_as_its_wire(num_writes: int) -> None:
    """Whether writes are posted one at a time or two at once."""
    harbour = Harbour(bytes_per_second=20e6, slot_bytes=100 * PAGE_BYTES)
    for _ in range(3):
        for slot in range(num_writes):
            harbour.outbox.send(Destination(KEY, PEER, slot), _fill_whole)
        harbour.drain()
    assert harbour.outbox.links[PEER].bytes_per_second == pytest.approx(20e6, rel=0.05)
    harbour.outbox.forget(PEER)
    assert not harbour.outbox.links


def test_a_paced_write_measures_nothing() -> None:
    """Its link is in use, but nothing is known of it."""
    harbour = Harbour(bytes_per_second=20e6, slot_bytes=100 * PAGE_BYTES)
    harbour.outbox.send(Destination(KEY, PEER, 0, is_paced=True), _fill_whole)
    harbour.drain()
    assert not harbour.outbox.links
