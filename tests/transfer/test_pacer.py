"""The token bucket of one planned transfer, under a clock that is moved by hand."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.pace import Pace
from transfer.pacer import IN_FLIGHT_S, MIN_IN_FLIGHT, Pacer
from transfer.pump import OPEN_POLL_S
from transfer.shipping_contract import ShippingConfig

CHUNK_BYTES = 1000
LAPSE_S = 30.0


def pace(allowed: float, *, is_shared: bool = True) -> Pace:
    """A pace that allows so many bytes a second."""
    return Pace(0.0, allowed, is_shared)


@dataclass
class Transfer:
    """Chunks under a pacer; each has ended when the next is asked for."""

    first: Pace
    posts: list[tuple[float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pacer = Pacer(self.first, 0.0, ShippingConfig(pace_lapse_s=LAPSE_S))

    def offer(self, now: float, num_bytes: int = CHUNK_BYTES) -> bool:
        """Posts a chunk if it may go."""
        if not self.pacer.may_post(now, 0, 0):
            return False
        self.pacer.posted(num_bytes, now)
        self.posts.append((now, num_bytes))
        return True

    def offer_all(self, begin: float, end: float, every: float = 0.001) -> int:
        """Offers chunks at every poll, as many as may go; their bytes."""
        before = len(self.posts)
        for step in range(round((end - begin) / every)):
            while self.offer(begin + step * every):
                pass
        return sum(num_bytes for _, num_bytes in self.posts[before:])


def test_the_first_chunk_goes_at_once_and_the_next_when_it_is_due() -> None:
    """A chunk goes when those before it are paid for."""
    transfer = Transfer(pace(10_000))
    assert transfer.offer(0.0)
    assert not transfer.offer(0.099)
    assert transfer.offer(0.1)
    assert not transfer.offer(0.1)


@pytest.mark.parametrize("rate", [3_000.0, 50_000.0, 900_000.0, 5e6])
@pytest.mark.parametrize("every", [0.001, 0.005])
def test_polls_that_are_late_cost_nothing(rate: float, every: float) -> None:
    """Over a second what is allowed goes, though chunks are shorter than a poll or fall due between two."""
    transfer = Transfer(pace(rate))
    num_bytes = transfer.offer_all(0.0, 2.0, every)
    assert num_bytes == pytest.approx(2 * rate, abs=3 * max(CHUNK_BYTES, rate * OPEN_POLL_S))


def test_a_pause_saves_no_more_than_a_chunk() -> None:
    """After seconds without anything to send, two chunks go together, and no third."""
    transfer = Transfer(pace(10_000))
    transfer.offer(0.0)
    assert [transfer.offer(5.0) for _ in range(3)] == [True, True, False]


def test_alone_nothing_waits() -> None:
    """A pace that is not shared is only what the planner believes of the link."""
    transfer = Transfer(pace(10_000, is_shared=False))
    assert all(transfer.offer(0.0) for _ in range(100))


def test_of_what_was_sent_alone_one_chunk_is_owed() -> None:
    """When another comes the transfer slows down at once, and does not stand still for all that it was ahead."""
    transfer = Transfer(pace(10_000, is_shared=False))
    for _ in range(100):
        transfer.offer(1.0)
    transfer.pacer.set_pace(pace(10_000), 1.0)
    assert not transfer.offer(1.05)
    assert transfer.offer(1.1)


def test_a_change_of_pace_keeps_the_debt_and_takes_the_new_rate() -> None:
    """Half of a chunk is owed when the pace becomes five times as fast, or a fifth as fast."""
    faster, slower = Transfer(pace(10_000)), Transfer(pace(10_000))
    for transfer, rate in ((faster, 50_000), (slower, 2_000)):
        transfer.offer(0.0)
        transfer.pacer.set_pace(pace(rate), 0.05)
    assert not faster.offer(0.059)
    assert faster.offer(0.06)
    assert not slower.offer(0.299)
    assert slower.offer(0.3)


def test_an_older_order_is_ignored() -> None:
    """Orders may come twice, and the second time behind a newer one."""
    transfer = Transfer(pace(10_000))
    transfer.pacer.set_pace(pace(20_000), 0.2)
    transfer.pacer.set_pace(pace(1.0), 0.1)
    assert transfer.offer(0.3)
    assert transfer.offer_all(0.3, 1.3) == pytest.approx(20_000, abs=2 * CHUNK_BYTES)


def test_an_order_from_before_the_ticket_was_opened_counts() -> None:
    """It was given while the prompt waited for the step thread."""
    transfer = Transfer(pace(10_000, is_shared=False))
    transfer.pacer.set_pace(pace(10_000), -0.1)
    assert transfer.offer(0.0)
    assert not transfer.offer(0.05)


def test_a_shared_pace_lapses_unless_it_is_ordered_again() -> None:
    """A planner that is gone slows nobody down for ever; a new order throttles again."""
    transfer = Transfer(pace(100.0))
    assert transfer.offer(0.0)
    assert not transfer.offer(9.9)
    assert transfer.offer_all(9.9, LAPSE_S, every=0.1) <= 4 * CHUNK_BYTES
    assert transfer.pacer.is_paced(LAPSE_S)
    assert all(transfer.offer(LAPSE_S + 0.1) for _ in range(50))
    transfer.pacer.set_pace(pace(100.0), 31.0)
    assert not transfer.offer(32.0)


def test_what_is_in_flight_is_bounded() -> None:
    """By what is allowed in a quarter of a second, but two chunks may always be; alone too."""
    for is_shared in (True, False):
        pacer = Pacer(pace(20_000, is_shared=is_shared), 0.0, ShippingConfig())
        pacer.posted(CHUNK_BYTES, 0.0)
        most = int(20_000 * IN_FLIGHT_S) // CHUNK_BYTES
        assert pacer.may_post(1.0, most - 1, (most - 1) * CHUNK_BYTES)
        assert not pacer.may_post(1.0, most, most * CHUNK_BYTES)
        pacer.set_pace(pace(0.0, is_shared=False), 1.0)
        assert not pacer.may_post(1.0, MIN_IN_FLIGHT - 1, CHUNK_BYTES)  # the first is not half through
        assert not pacer.may_post(1e9, MIN_IN_FLIGHT, 2 * CHUNK_BYTES)
        assert pacer.may_post(1e9, MIN_IN_FLIGHT - 1, CHUNK_BYTES)
        assert pacer.may_post(1.0, 0, 0)


@given(
    rate=st.floats(10.0, 1e8),
    pauses=st.lists(st.floats(0.0, 0.2), min_size=1, max_size=80),
    sizes=st.lists(st.integers(1, 10_000), min_size=1, max_size=5),
)
def test_no_stretch_of_time_carries_more_than_is_allowed(rate: float, pauses: list[float], sizes: list[int]) -> None:
    """Whatever is offered when: at most `allowed * t` and two chunks within any `t` seconds, and never nothing for ever."""
    transfer = Transfer(pace(rate))
    now = 0.0
    for number, pause in enumerate(pauses):
        now += pause
        for _ in range(3):
            transfer.offer(now, sizes[number % len(sizes)])
    chunk = max(max(sizes), rate * OPEN_POLL_S)
    for first in range(len(transfer.posts)):
        posted = 0
        for at, num_bytes in transfer.posts[first:]:
            posted += num_bytes
            assert posted <= rate * (at - transfer.posts[first][0]) + 2 * chunk + 2
    assert transfer.offer(now + max(sizes) / rate + 1e-6)
