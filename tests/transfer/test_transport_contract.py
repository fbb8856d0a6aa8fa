"""What both transports promise, tested on both."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from protocol.errors import LayoutMismatch, NotConnected, TransferError
from protocol.ids import WorkerId
from tests.transfer.wires import NUM_SLOTS, SLOT_BYTES, Wires, connect, filling, request
from transfer.transport import PeerAddress, Write, WriteState


@pytest.mark.parametrize("num_bytes", [1, 63, 4096, 5000, SLOT_BYTES])
def test_bytes_are_whole_when_their_tag_is_seen(wires: Wires, num_bytes: int) -> None:
    """When a write's tag arrives, all its bytes are in the slot, whatever their number."""
    sender, receiver = wires.pair()
    payload = filling(1, num_bytes)
    sender.outbox.slot(2)[:num_bytes] = payload
    write = sender.transport.write(request(receiver, local_slot=2, remote_slot=3, num_bytes=num_bytes))
    wires.wait_for_tags(receiver, 1)
    assert bytes(receiver.landing.slot(3)[:num_bytes]) == payload
    assert receiver.seen == [(sender.worker, b"tag-0001")]
    assert wires.finish(sender, write) is WriteState.DONE


def test_a_short_write_leaves_the_rest_alone(wires: Wires) -> None:
    """Nothing beyond `num_bytes` is touched: neither the rest of the slot nor its neighbours."""
    sender, receiver = wires.pair()
    for slot in range(NUM_SLOTS):
        receiver.landing.slot(slot)[:] = b"\xee" * SLOT_BYTES
        sender.outbox.slot(slot)[:] = b"\x11" * SLOT_BYTES
    write = sender.transport.write(request(receiver, remote_slot=1, num_bytes=1001))
    wires.wait_for_tags(receiver, 1)
    assert wires.finish(sender, write) is WriteState.DONE
    assert bytes(receiver.landing.slot(1)) == b"\x11" * 1001 + b"\xee" * (SLOT_BYTES - 1001)
    assert bytes(receiver.landing.slot(0)) == bytes(receiver.landing.slot(2)) == b"\xee" * SLOT_BYTES


def test_tags_that_begin_alike_stay_distinct(wires: Wires) -> None:
    """Tags are compared and delivered whole: a prefix of another tag is another tag; any byte may occur in it."""
    sender, receiver = wires.pair()
    tags = [b"req-1", b"req-10", b"req-1\x00", b"\x00req-1", b"\xff" * 256]
    writes = [sender.transport.write(request(receiver, num_bytes=64, tag=tag)) for tag in tags]
    wires.wait_for_tags(receiver, len(tags))
    assert receiver.tags() == Counter(tags)
    assert {wires.finish(sender, write) for write in writes} == {WriteState.DONE}


def test_many_writes_arrive_once_each(wires: Wires) -> None:
    """Three hundred writes over four slots: each tag once, each slot's bytes those of its write."""
    sender, receiver = wires.pair()
    payloads = [filling(seed, 4096) for seed in range(NUM_SLOTS)]
    num_rounds = 75
    for turn in range(num_rounds):
        writes: list[Write] = []
        for slot, payload in enumerate(payloads):
            sender.outbox.slot(slot)[:4096] = payload
            tag = b"%04d-%04d" % (turn, slot)
            writes.append(
                sender.transport.write(request(receiver, local_slot=slot, remote_slot=slot, num_bytes=4096, tag=tag))
            )
        wires.wait_for_tags(receiver, NUM_SLOTS * (turn + 1))
        assert {wires.finish(sender, write) for write in writes} == {WriteState.DONE}
        for slot, payload in enumerate(payloads):
            assert bytes(receiver.landing.slot(slot)[:4096]) == payload
            receiver.landing.slot(slot)[:4096] = bytes(4096)
    assert receiver.tags() == Counter(
        b"%04d-%04d" % (turn, slot) for turn in range(num_rounds) for slot in range(NUM_SLOTS)
    )


def test_a_tag_alone_goes_either_way(wires: Wires) -> None:
    """`notify` delivers a tag without bytes, from each side to the other."""
    sender, receiver = wires.pair()
    sender.transport.notify(receiver.worker, b"renew")
    receiver.transport.notify(sender.worker, b"credit")
    wires.wait_for_tags(receiver, 1)
    wires.wait_for_tags(sender, 1)
    assert receiver.seen == [(sender.worker, b"renew")]
    assert sender.seen == [(receiver.worker, b"credit")]


def test_two_senders_share_a_receiver(wires: Wires) -> None:
    """Writes of two senders land side by side, and each tag says whose it is."""
    receiver = wires.side("receiver")
    senders = [wires.side(f"sender-{index}") for index in range(2)]
    for index, sender in enumerate(senders):
        connect(sender, receiver)
        sender.outbox.slot(0)[:512] = filling(index, 512)
        write = sender.transport.write(request(receiver, remote_slot=index, num_bytes=512, tag=b"mine"))
        assert wires.finish(sender, write) is WriteState.DONE
    wires.wait_for_tags(receiver, 2)
    assert Counter(receiver.seen) == Counter((sender.worker, b"mine") for sender in senders)
    assert [bytes(receiver.landing.slot(index)[:512]) for index in range(2)] == [filling(0, 512), filling(1, 512)]


def test_strangers_cannot_be_written_to(wires: Wires) -> None:
    """A write or a tag to a worker that is not connected raises, and says so."""
    sender, _ = wires.pair()
    with pytest.raises(NotConnected, match="not connected"):
        sender.transport.write(request(WorkerId.fresh("stranger")))
    with pytest.raises(NotConnected, match="not connected"):
        sender.transport.notify(WorkerId.fresh("stranger"), b"hello")


@pytest.mark.parametrize(
    "wrong",
    [
        {"local_slot": NUM_SLOTS},
        {"local_slot": -1},
        {"remote_slot": NUM_SLOTS},
        {"remote_slot": -1},
        {"num_bytes": 0},
        {"num_bytes": SLOT_BYTES + 1},
        {"tag": b""},
        {"tag": b"x" * 257},
    ],
    ids=str,
)
def test_what_is_out_of_range_is_refused(local_wires: Wires, wrong: dict[str, int | bytes]) -> None:
    """A slot, length or tag outside the contract raises before anything is posted. The check is one for both transports."""
    sender, receiver = local_wires.pair()
    with pytest.raises(TransferError):
        sender.transport.write(replace(request(receiver), **wrong))  # type: ignore[arg-type]
    local_wires.poll()
    assert receiver.seen == []


def test_nixl_refuses_what_is_out_of_range() -> None:
    """The real transport uses the same check."""
    made = Wires("nixl")
    try:
        sender, receiver = made.pair()
        with pytest.raises(TransferError, match="remote slot 4 of a landing zone of 4"):
            sender.transport.write(request(receiver, remote_slot=NUM_SLOTS))
    finally:
        made.close()


def test_a_worker_without_a_landing_zone_is_not_written_to(wires: Wires) -> None:
    """Tags may go to a prefill worker, bytes may not."""
    sender, receiver = wires.side("sender"), wires.side("receiver")
    receiver.transport.connect(sender.transport.address())
    sender.transport.connect(replace(receiver.transport.address(), zone=None))
    with pytest.raises(TransferError, match="no landing zone"):
        sender.transport.write(request(receiver))
    sender.transport.notify(receiver.worker, b"still heard")
    wires.wait_for_tags(receiver, 1)


def test_another_transport_is_a_mismatch(wires: Wires) -> None:
    """Two workers that speak different transports cannot be connected."""
    side = wires.side()
    with pytest.raises(LayoutMismatch, match="smoke signals"):
        side.transport.connect(PeerAddress(WorkerId.fresh("far"), "smoke signals", b"", None))


def test_connecting_twice_is_connecting_once(wires: Wires) -> None:
    """`connect` is idempotent: a tag still arrives once."""
    sender, receiver = wires.pair()
    connect(sender, receiver)
    sender.transport.notify(receiver.worker, b"once")
    wires.wait_for_tags(receiver, 1)
    wires.poll()
    assert receiver.tags() == Counter([b"once"])


def test_a_restarted_peer_is_another_peer(wires: Wires) -> None:
    """After a restart the new incarnation can be connected and written to; the old one is refused."""
    sender, old = wires.pair()
    assert wires.finish(sender, sender.transport.write(request(old))) is WriteState.DONE
    wires.drop(old)
    new = wires.side("receiver")
    sender.transport.disconnect(old.worker)
    connect(sender, new)
    sender.outbox.slot(0)[:1024] = filling(9, 1024)
    write = sender.transport.write(request(new, remote_slot=2))
    wires.wait_for_tags(new, 1)
    assert wires.finish(sender, write) is WriteState.DONE
    assert bytes(new.landing.slot(2)[:1024]) == filling(9, 1024)
    with pytest.raises(NotConnected):
        sender.transport.write(request(old))


def test_disconnecting_forgets_a_peer(wires: Wires) -> None:
    """After `disconnect` nothing can be sent, tags of the peer are dropped, and it can be connected again."""
    sender, receiver = wires.pair()
    sender.transport.notify(receiver.worker, b"before")
    wires.wait_for_tags(receiver, 1)
    receiver.transport.disconnect(sender.worker)
    receiver.transport.disconnect(WorkerId.fresh("never seen"))
    with pytest.raises(NotConnected):
        receiver.transport.notify(sender.worker, b"hello")
    receiver.transport.connect(sender.transport.address())
    receiver.transport.notify(sender.worker, b"again")
    wires.wait_for_tags(sender, 1)
    assert sender.tags() == Counter([b"again"])


def test_a_disowned_write_ends_as_failed(wires: Wires) -> None:
    """A write whose peer was disconnected while it was in flight becomes FAILED, at its end and not before."""
    if wires.name == "local":
        wires.fabric.faults.hold()
    sender, receiver = wires.pair()
    write = sender.transport.write(request(receiver, num_bytes=SLOT_BYTES))
    is_in_flight = sender.transport.state(write) is WriteState.PENDING
    sender.transport.disconnect(receiver.worker)
    if wires.name == "local":
        assert sender.transport.state(write) is WriteState.PENDING
        wires.fabric.faults.release()
    end = wires.finish(sender, write)
    assert end is (WriteState.FAILED if is_in_flight else WriteState.DONE)
    assert sender.transport.state(write) is end


def test_writes_to_a_closed_peer_fail(wires: Wires) -> None:
    """A write to a peer that has gone ends as FAILED or raises, within a deadline; it never stays pending."""
    sender, receiver = wires.pair()
    assert wires.finish(sender, sender.transport.write(request(receiver))) is WriteState.DONE
    wires.drop(receiver)
    try:
        write = sender.transport.write(request(receiver))
    except TransferError:
        return
    assert wires.finish(sender, write) is WriteState.FAILED


def test_a_closed_transport_refuses_calls(wires: Wires) -> None:
    """After `close` calls raise `TransferError`; closing again and forgetting peers are harmless."""
    sender, receiver = wires.pair()
    wires.drop(sender)
    sender.transport.close()
    sender.transport.disconnect(receiver.worker)
    for call in (
        lambda: sender.transport.write(request(receiver)),
        lambda: sender.transport.notify(receiver.worker, b"x"),
        lambda: sender.transport.connect(receiver.transport.address()),
        sender.transport.notifications,
    ):
        with pytest.raises(TransferError, match="closed"):
            call()


def test_the_wire_has_a_name(wires: Wires) -> None:
    """`protocols` says something for people, and the address carries the transport's name."""
    side = wires.side()
    assert side.transport.protocols()
    assert side.transport.address().transport == wires.name == side.transport.name
