"""The wire with a rate, under a clock that is moved by hand."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from protocol.ids import WorkerId
from tests.support.clock import FakeClock
from transfer.local_wire import RatedWire

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
