"""The faults that the in-process transport commits on order, each exactly as often as it was ordered."""

from __future__ import annotations

from collections import Counter

import pytest

from protocol.errors import TransferError
from protocol.ids import WorkerId
from tests.transfer.wires import Wires, connect, filling, request
from transfer.arena import Arena
from transfer.local import LocalTransport
from transfer.transport import Arenas, WriteState

PAYLOAD = filling(3, 1024)


def write_all(wires: Wires, num_writes: int) -> tuple[list[WriteState], Counter[bytes], list[bytes]]:
    """Posts writes of `PAYLOAD` to slots 0, 1, ...; their ends, the tags seen, and what lies in the slots."""
    sender, receiver = wires.pair()
    sender.outbox.slot(0)[:1024] = PAYLOAD
    writes = [
        sender.transport.write(request(receiver, remote_slot=slot, tag=b"tag-%d" % slot)) for slot in range(num_writes)
    ]
    ends = [wires.finish(sender, write) for write in writes]
    wires.poll()
    return ends, receiver.tags(), [bytes(receiver.landing.slot(slot)[:1024]) for slot in range(num_writes)]


def test_without_an_order_nothing_goes_wrong(local_wires: Wires) -> None:
    """The fake is as reliable as it is told to be."""
    ends, tags, slots = write_all(local_wires, 3)
    assert ends == [WriteState.DONE] * 3
    assert tags == Counter([b"tag-0", b"tag-1", b"tag-2"])
    assert slots == [PAYLOAD] * 3


def test_a_dropped_write_vanishes(local_wires: Wires) -> None:
    """Bytes and tag are lost although the sender is told that it is done; only the ordered number is lost."""
    local_wires.fabric.faults.drop_write(2)
    ends, tags, slots = write_all(local_wires, 3)
    assert ends == [WriteState.DONE] * 3
    assert tags == Counter([b"tag-2"])
    assert slots == [bytes(1024), bytes(1024), PAYLOAD]


def test_an_order_may_choose_its_write(local_wires: Wires) -> None:
    """A predicate on the request says which write is meant."""
    local_wires.fabric.faults.drop_write(when=lambda posted: posted.remote_slot == 1)
    _, tags, _ = write_all(local_wires, 3)
    assert tags == Counter([b"tag-0", b"tag-2"])


def test_a_failed_write_says_so(local_wires: Wires) -> None:
    """The sender sees FAILED, the receiver nothing."""
    local_wires.fabric.faults.fail_write()
    ends, tags, slots = write_all(local_wires, 2)
    assert ends == [WriteState.FAILED, WriteState.DONE]
    assert tags == Counter([b"tag-1"])
    assert slots[0] == bytes(1024)


@pytest.mark.parametrize("bit", [0, 77, 8 * 1024 - 1, 8 * 1024 + 5])
def test_a_corrupted_write_differs_in_one_bit(local_wires: Wires, bit: int) -> None:
    """Exactly one bit is flipped on the way; the sender's own bytes stay whole."""
    local_wires.fabric.faults.corrupt_write(bit=bit)
    _, tags, slots = write_all(local_wires, 1)
    flipped = int.from_bytes(slots[0], "little") ^ int.from_bytes(PAYLOAD, "little")
    assert flipped == 1 << bit % (8 * 1024)
    assert tags == Counter([b"tag-0"])


def test_a_tag_may_come_twice_or_not_at_all(local_wires: Wires) -> None:
    """The bytes arrive once either way."""
    local_wires.fabric.faults.duplicate_tag()
    local_wires.fabric.faults.drop_tag()
    ends, tags, slots = write_all(local_wires, 2)
    assert ends == [WriteState.DONE] * 2
    assert tags == Counter({b"tag-0": 2})
    assert slots == [PAYLOAD] * 2


def test_tags_sent_alone_have_faults_of_their_own(local_wires: Wires) -> None:
    """`notify` can lose and double tags by order."""
    sender, receiver = local_wires.pair()
    local_wires.fabric.faults.drop_notification(when=lambda tag: tag == b"lost")
    local_wires.fabric.faults.duplicate_notification(when=lambda tag: tag == b"twice")
    for tag in (b"once", b"lost", b"twice"):
        sender.transport.notify(receiver.worker, tag)
    local_wires.poll()
    assert receiver.tags() == Counter({b"once": 1, b"twice": 2})


def test_a_held_write_waits_for_its_release(local_wires: Wires) -> None:
    """Held writes stay pending however often they are polled; released, they land with the bytes of that moment."""
    local_wires.fabric.faults.hold()
    sender, receiver = local_wires.pair()
    write = sender.transport.write(request(receiver))
    for _ in range(5):
        local_wires.poll()
        assert sender.transport.state(write) is WriteState.PENDING
    sender.outbox.slot(0)[:1024] = PAYLOAD
    local_wires.fabric.faults.release()
    assert local_wires.finish(sender, write) is WriteState.DONE
    assert bytes(receiver.landing.slot(0)[:1024]) == PAYLOAD
    assert sender.transport.state(sender.transport.write(request(receiver))) is WriteState.DONE


def test_a_late_write_lands_after_its_sender_was_forgotten(local_wires: Wires) -> None:
    """Disconnecting stops no write: its bytes still land, its tag is dropped, and its sender sees FAILED."""
    local_wires.fabric.faults.hold()
    sender, receiver = local_wires.pair()
    sender.outbox.slot(0)[:1024] = PAYLOAD
    write = sender.transport.write(request(receiver))
    receiver.transport.disconnect(sender.worker)
    sender.transport.disconnect(receiver.worker)
    assert bytes(receiver.landing.slot(0)[:1024]) == bytes(1024)
    local_wires.fabric.faults.release()
    assert local_wires.finish(sender, write) is WriteState.FAILED
    assert bytes(receiver.landing.slot(0)[:1024]) == PAYLOAD
    assert receiver.seen == []


def test_a_killed_peer_fails_its_writers(local_wires: Wires) -> None:
    """Writes to a killed endpoint fail, tags to it raise, and what it had posted never arrives."""
    sender, receiver = local_wires.pair()
    local_wires.fabric.faults.hold()
    coming_in = receiver.transport.write(request(sender))
    going_out = sender.transport.write(request(receiver))
    local_wires.fabric.kill(receiver.worker)
    local_wires.fabric.faults.release()
    assert local_wires.finish(sender, going_out) is WriteState.FAILED
    assert receiver.transport.state(coming_in) is WriteState.FAILED
    assert sender.seen == []
    with pytest.raises(TransferError, match="gone"):
        sender.transport.notify(receiver.worker, b"hello")


def test_one_incarnation_has_one_endpoint(local_wires: Wires) -> None:
    """A second endpoint of the same incarnation is refused; the next incarnation connects."""
    sender, receiver = local_wires.pair()
    with pytest.raises(TransferError, match="incarnation"):
        LocalTransport(receiver.worker, Arenas(Arena(1, 4096), None), local_wires.fabric)
    local_wires.fabric.kill(receiver.worker)
    connect(sender, local_wires.side(worker=WorkerId.fresh("receiver")))
