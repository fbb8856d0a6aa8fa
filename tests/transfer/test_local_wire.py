"""The wire with a rate, under a clock that is moved by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import WorkerId
from tests.support.clock import FakeClock
from transfer.arena import PAGE_BYTES, Arena
from transfer.local import LocalFabric, LocalTransport
from transfer.local_wire import RatedWire
from transfer.transport import Arenas, WriteRequest, WriteState

RATE = 1000.0
ANNE, BERT = WorkerId("prefill-0", "a"), WorkerId("prefill-1", "b")
HERE, THERE = WorkerId("decode-0", "c"), WorkerId("decode-1", "d")


class Harbour:
    """A wire of 1,000 bytes a second."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.wire: RatedWire[str] = RatedWire(RATE, self.clock)

    def after(self, seconds: float) -> list[str]:
        """What was carried by then."""
        self.clock.advance(seconds)
        return [cargo for _, cargo in self.wire.carried()]


def test_a_write_takes_as_long_as_its_bytes() -> None:
    """Not done a moment before, done then, given out once."""
    harbour = Harbour()
    harbour.wire.post(ANNE, HERE, "one", 500)
    assert harbour.after(0.499) == []
    assert harbour.after(0.001) == ["one"]
    assert harbour.after(9.0) == []


def test_senders_into_one_destination_share_equally() -> None:
    """Each at half the rate until one is through; writes of one sender go one after another."""
    harbour = Harbour()
    harbour.wire.post(ANNE, HERE, "long", 800)
    harbour.wire.post(BERT, HERE, "short", 200)
    harbour.wire.post(BERT, HERE, "next", 100)
    assert harbour.after(0.4) == ["short"]
    assert harbour.after(0.2) == ["next"]
    assert harbour.after(0.499) == []
    assert harbour.after(0.001) == ["long"]


def test_destinations_do_not_share() -> None:
    """Each takes in its rate, from one sender too."""
    harbour = Harbour()
    harbour.wire.post(ANNE, HERE, "one", 500)
    harbour.wire.post(ANNE, THERE, "other", 500)
    assert sorted(harbour.after(0.5)) == ["one", "other"]


def test_an_idle_wire_saves_nothing() -> None:
    """What is posted after a pause takes its time."""
    harbour = Harbour()
    harbour.after(10.0)
    harbour.wire.post(ANNE, HERE, "one", 500)
    assert harbour.after(0.4) == []
    assert list(harbour.wire.posted()) == [(ANNE, "one")]


def test_a_sender_that_is_gone_leaves_the_wire_to_others() -> None:
    """What it had posted takes no more room."""
    harbour = Harbour()
    harbour.wire.post(ANNE, HERE, "gone", 10_000)
    harbour.wire.post(BERT, HERE, "here", 500)
    harbour.wire.drop(ANNE)
    assert harbour.after(0.5) == ["here"]
    assert list(harbour.wire.posted()) == []


@given(st.lists(st.tuples(st.sampled_from([ANNE, BERT]), st.integers(1, 500), st.floats(0.0, 0.4)), max_size=30))
def test_no_byte_comes_early_or_late(writes: list[tuple[WorkerId, int, float]]) -> None:
    """The wire is done with everything exactly when the bytes need it to be, with no pause while something waits."""
    harbour = Harbour()
    until = 0.0
    for number, (sender, num_bytes, pause) in enumerate(writes):
        harbour.wire.post(sender, HERE, str(number), num_bytes)
        until = max(until, harbour.clock.now) + num_bytes / RATE
        harbour.after(pause)
    if harbour.clock.now < until - 1e-5:
        assert list(harbour.wire.posted())
    harbour.clock.now = max(harbour.clock.now, until + 1e-5)
    harbour.wire.carried()
    assert list(harbour.wire.posted()) == []


class Pair:
    """Two endpoints on a fabric with a wire of 1,000 bytes a second, and a write of 500 that is half way."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.fabric = LocalFabric(RatedWire(RATE, self.clock))
        self.outbox, self.landing = Arena(1, PAGE_BYTES), Arena(1, PAGE_BYTES)
        self.sender = LocalTransport(ANNE, Arenas(landing=None, outbox=self.outbox), self.fabric)
        self.receiver = LocalTransport(HERE, Arenas(landing=self.landing, outbox=None), self.fabric)
        self.sender.connect(self.receiver.address())
        self.receiver.connect(self.sender.address())
        self.outbox.slot(0)[:3] = b"kv!"
        self.write = self.sender.write(WriteRequest(HERE, 0, 0, 500, b"tag"))
        self.clock.advance(0.25)

    def arrived(self) -> bytes:
        """What lies in the landing slot."""
        return bytes(self.landing.slot(0)[:3])


def test_a_transport_is_done_when_its_wire_is() -> None:
    """Neither bytes nor tag come before; a fault holds a write that was carried."""
    pair = Pair()
    assert pair.sender.state(pair.write) is WriteState.PENDING
    assert pair.receiver.notifications() == []
    assert pair.arrived() == bytes(3)
    pair.clock.advance(0.25)
    assert pair.receiver.notifications() == [(ANNE, b"tag")]
    assert pair.sender.state(pair.write) is WriteState.DONE
    assert pair.arrived() == b"kv!"
    pair.fabric.faults.hold()
    held = pair.sender.write(WriteRequest(HERE, 0, 0, 500, b"tag"))
    pair.clock.advance(5.0)
    assert pair.sender.state(held) is WriteState.PENDING
    pair.fabric.faults.release()
    assert pair.sender.state(held) is WriteState.DONE


def test_a_peer_that_is_forgotten_fails_what_is_on_the_wire() -> None:
    """As soon as it is terminal."""
    pair = Pair()
    pair.sender.disconnect(HERE)
    assert pair.sender.state(pair.write) is WriteState.PENDING
    pair.clock.advance(0.25)
    assert pair.sender.state(pair.write) is WriteState.FAILED


def test_what_a_dead_sender_had_on_the_wire_never_arrives() -> None:
    """Its process is gone in the middle of a write."""
    pair = Pair()
    pair.fabric.kill(ANNE)
    pair.clock.advance(5.0)
    assert pair.receiver.notifications() == []
    assert pair.write.state is WriteState.FAILED
    assert pair.arrived() == bytes(3)
