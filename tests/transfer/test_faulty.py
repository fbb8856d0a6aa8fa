"""The transport that harms its writes, over the local one: each harm is what it says, and KV lands whole all the same."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

import pytest

from protocol.errors import ConfigError, NotConnected, TransferError
from protocol.ids import WorkerId
from tests.support.clock import FakeClock
from tests.transfer.ferry import CHUNK_TOKENS, STALL_S, Ferry, FerryOptions, check_landed, layout
from tests.transfer.wires import NUM_SLOTS, SLOT_BYTES, filling, request
from transfer.arena import Arena
from transfer.codec.pool_codec import PoolCodec
from transfer.faulty import FaultRates, FaultyTransport, Harm, parse_faults
from transfer.local import LocalFabric, LocalTransport
from transfer.shipping import Sender
from transfer.shipping_contract import ShippingConfig
from transfer.transport import Arenas, WriteState

PAYLOAD = filling(5, 1024)
DELAY_S = 0.5


@dataclass(eq=False)
class Crossing:
    """A faulty sender and a whole receiver on one fabric, with `PAYLOAD` in the sender's first slot."""

    rates: FaultRates

    def __post_init__(self) -> None:
        self.clock = FakeClock()
        self.fabric = LocalFabric()
        self.outbox, self.landing = Arena(NUM_SLOTS, SLOT_BYTES), Arena(NUM_SLOTS, SLOT_BYTES)
        self.inner = LocalTransport(WorkerId("prefill-0", "a"), Arenas(None, self.outbox), self.fabric)
        self.receiver = LocalTransport(WorkerId("decode-0", "b"), Arenas(self.landing, None), self.fabric)
        self.sender = FaultyTransport(self.inner, self.outbox, self.rates, self.clock)
        self.sender.connect(self.receiver.address())
        self.receiver.connect(self.sender.address())
        self.outbox.slot(0)[:1024] = PAYLOAD

    def tags(self) -> Counter[bytes]:
        """The tags that the receiver has not taken yet."""
        return Counter(tag for _, tag in self.receiver.notifications())

    def landed(self, slot: int = 0) -> bytes:
        """What lies in a landing slot."""
        return bytes(self.landing.slot(slot)[:1024])


def test_without_faults_all_is_as_before() -> None:
    """Address, name, writes and tags are the wrapped transport's own; the wire's description says that it is harmed."""
    crossing = Crossing(FaultRates())
    write = crossing.sender.write(request(crossing.receiver.worker))
    assert crossing.sender.state(write) is WriteState.DONE
    crossing.sender.notify(crossing.receiver.worker, b"alone")
    assert crossing.tags() == Counter([b"tag-0001", b"alone"])
    assert crossing.landed() == PAYLOAD
    assert crossing.sender.address() == crossing.inner.address()
    assert crossing.sender.name == "local"
    assert crossing.sender.protocols().endswith("with faults injected")
    crossing.receiver.notify(crossing.inner.worker, b"back")
    assert crossing.sender.notifications() == [(crossing.receiver.worker, b"back")]
    assert not crossing.sender.counts


def test_a_dropped_write_is_done_and_gone() -> None:
    """The sender is told that it is done; nothing arrives."""
    crossing = Crossing(FaultRates(drop=1.0))
    write = crossing.sender.write(request(crossing.receiver.worker))
    assert crossing.sender.state(write) is WriteState.DONE
    assert not crossing.tags()
    assert crossing.landed() == bytes(1024)
    assert crossing.sender.counts == Counter({Harm.DROP: 1})


def test_a_late_write_is_pending_until_its_time() -> None:
    """Then it crosses with the bytes that the slot holds."""
    crossing = Crossing(FaultRates(delay=1.0, delay_s=DELAY_S))
    write = crossing.sender.write(request(crossing.receiver.worker))
    crossing.clock.advance(DELAY_S * 0.9)
    assert crossing.sender.state(write) is WriteState.PENDING
    assert not crossing.tags()
    crossing.clock.advance(DELAY_S * 0.2)
    assert crossing.sender.notifications() == []
    assert crossing.tags() == Counter([b"tag-0001"])
    assert crossing.landed() == PAYLOAD
    assert crossing.sender.state(write) is WriteState.DONE


@pytest.mark.parametrize("ending", ["disconnected", "dead", "closed"])
def test_a_late_write_to_nobody_fails(ending: str) -> None:
    """Whether the peer was forgotten, has died, or the sender ended meanwhile."""
    crossing = Crossing(FaultRates(delay=1.0, delay_s=DELAY_S))
    write = crossing.sender.write(request(crossing.receiver.worker))
    peer = crossing.receiver.worker
    if ending == "disconnected":
        crossing.sender.disconnect(peer)
    elif ending == "dead":
        crossing.fabric.kill(peer)
    else:
        crossing.sender.close()
    crossing.clock.advance(DELAY_S)
    assert crossing.sender.state(write) is WriteState.FAILED
    assert crossing.landed() == bytes(1024)


def test_a_doubled_tag_comes_after_its_bytes() -> None:
    """The write arrives once and says so twice."""
    crossing = Crossing(FaultRates(duplicate=1.0))
    write = crossing.sender.write(request(crossing.receiver.worker))
    assert crossing.sender.state(write) is WriteState.DONE
    assert crossing.sender.state(write) is WriteState.DONE
    assert crossing.tags() == Counter({b"tag-0001": 2})
    assert crossing.landed() == PAYLOAD


def test_a_corrupted_write_differs_in_one_bit_and_the_outbox_is_whole_again() -> None:
    """Exactly one bit is wrong where it lands; the sender's slot is put back when the write is terminal."""
    crossing = Crossing(FaultRates(corrupt=1.0))
    write = crossing.sender.write(request(crossing.receiver.worker))
    assert crossing.sender.state(write) is WriteState.DONE
    flipped = int.from_bytes(crossing.landed(), "little") ^ int.from_bytes(PAYLOAD, "little")
    assert flipped.bit_count() == 1
    assert bytes(crossing.outbox.slot(0)[:1024]) == PAYLOAD
    assert crossing.tags() == Counter([b"tag-0001"])


@pytest.mark.parametrize("harm", list(Harm))
def test_what_a_transport_refuses_is_refused(harm: Harm) -> None:
    """Also for a write that would only seem to be posted: strangers and ranges; the slot keeps its bytes."""
    crossing = Crossing(parse_faults(f"{harm}=1"))
    with pytest.raises(NotConnected):
        crossing.sender.write(request(WorkerId("decode-9", "z")))
    with pytest.raises(TransferError, match="remote slot"):
        crossing.sender.write(request(crossing.receiver.worker, remote_slot=NUM_SLOTS))
    crossing.inner.close()
    if harm in (Harm.DUPLICATE, Harm.CORRUPT):
        with pytest.raises(TransferError, match="closed"):
            crossing.sender.write(request(crossing.receiver.worker))
    assert bytes(crossing.outbox.slot(0)[:1024]) == PAYLOAD


def test_the_seed_says_which_writes_are_hit() -> None:
    """The same for the same seed and worker; near the share asked for, with each harm."""
    rates = FaultRates(drop=0.1, delay=0.1, duplicate=0.1, corrupt=0.1, seed=7)
    first, again, other = (
        [rates.draw(dice) for _ in range(2000)] for dice in (random.Random(7), random.Random(7), random.Random(8))
    )
    assert first == again != other
    counts = Counter(first)
    assert all(150 <= counts[harm] <= 250 for harm in Harm)
    assert 1100 <= counts[None] <= 1300


def test_a_specification_is_read() -> None:
    """Every key, in any order, with defaults for the others."""
    assert parse_faults("corrupt=0.02, drop=0.01,delay=0.05,delay_s=1,seed=1") == FaultRates(
        corrupt=0.02, drop=0.01, delay=0.05, delay_s=1.0, seed=1
    )
    assert parse_faults("duplicate=1") == FaultRates(duplicate=1.0)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("", "is no fault"),
        ("drop", "is no fault"),
        ("lose=0.1", "'lose=0.1'"),
        ("drop=0.1,drop=0.2", "once"),
        ("drop=often", "drop is a number"),
        ("seed=1.5", "seed is a number"),
        ("drop=1.5", "drop is a share"),
        ("drop=nan", "drop is a share"),
        ("drop=0.6,corrupt=0.6", "together"),
        ("delay=0.1,delay_s=-1", "delay_s"),
        ("delay=0.1,delay_s=1e9", "delay_s"),
    ],
)
def test_a_wrong_specification_is_named(text: str, word: str) -> None:
    """With the flag, and what is wrong with it."""
    with pytest.raises(ConfigError, match=f"--inject-faults.*{word}"):
        parse_faults(text)


class FaultyFerry(Ferry):
    """A ferry whose sender's writes are harmed."""

    def __init__(self, rates: FaultRates) -> None:
        self.rates = rates
        super().__init__(FerryOptions(shipping=ShippingConfig(STALL_S)))

    def new_sender(self, name: str = "prefill-0") -> Sender:
        """Over a `FaultyTransport`."""
        worker, arena = WorkerId.fresh(name), Arena(self.options.num_outbox_slots, self.options.slot_bytes)
        inner = LocalTransport(worker, Arenas(landing=None, outbox=arena), self.fabric)
        self.faulty = FaultyTransport(inner, arena, self.rates, self.clock)
        sender = Sender(worker, self.faulty, arena, PoolCodec(self.source, layout()), self.options.shipping)
        sender.clock = self.clock
        return sender


def test_kv_lands_whole_through_late_doubled_and_corrupted_chunks() -> None:
    """A corrupted chunk is sent again, a doubled tag ignored, a late one waited for: the cache holds exactly the source."""
    ferry = FaultyFerry(FaultRates(delay=0.3, duplicate=0.3, corrupt=0.1, delay_s=0.05, seed=3))
    for _ in range(12):
        ticket = ferry.reserve(6 * CHUNK_TOKENS)
        ferry.ship(ticket)
        ferry.run(1.0)
        check_landed(ferry, ticket)
    ferry.check_quiet()
    assert set(ferry.faulty.counts) == {Harm.DELAY, Harm.DUPLICATE, Harm.CORRUPT}
    assert min(ferry.faulty.counts.values()) > 3


def test_whatever_is_lost_every_transfer_ends_once_on_both_sides() -> None:
    """Lost chunks and chunks corrupted twice end it with an error; what ended without one is whole; all slots come back."""
    ferry = FaultyFerry(FaultRates(drop=0.04, delay=0.2, duplicate=0.2, corrupt=0.2, delay_s=0.05, seed=4))
    outcomes = set()
    for _ in range(12):
        ticket = ferry.reserve(6 * CHUNK_TOKENS)
        ferry.ship(ticket)
        ferry.run(2.0 * STALL_S)
        outcomes.add(type(ferry.landed(ticket).error))
        if ferry.landed(ticket).error is None:
            check_landed(ferry, ticket)
        else:
            assert ferry.shipped(ticket).error is not None
        ferry.check_quiet()
    assert type(None) in outcomes
    assert len(outcomes) > 1
    assert set(ferry.faulty.counts) == set(Harm)
