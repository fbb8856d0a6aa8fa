"""Transfers that end early: revoked, aborted, forgotten, replayed, and tags of strangers."""

from __future__ import annotations

import pytest
import torch

from protocol.errors import Cancelled, StaleTicket, WorkerUnavailable
from protocol.ids import WorkerId, new_request_id
from tests.transfer.ferry import CHUNK_TOKENS, LEASE_S, check_landed, patient_ferry
from transfer.frames import Frame, FrameKind


def test_revoked_before_it_is_opened() -> None:
    """P answers CLOSED for a ticket that it never saw, and refuses it when it comes late, without one write."""
    pair = patient_ferry()
    ticket = pair.reserve(100)
    pair.receiver.revoke(ticket.generation)
    pair.run(2.0)
    pair.check_quiet()
    pair.ship(ticket)
    pair.run()
    assert isinstance(pair.shipped(ticket).error, StaleTicket)
    assert pair.shipped(ticket).num_bytes == 0
    pair.check_quiet()


def test_a_used_ticket_is_refused() -> None:
    """Its slots may be somebody else's by now: nothing is written under it again."""
    pair = patient_ferry()
    ticket = pair.reserve(100)
    pair.ship(ticket)
    pair.run()
    check_landed(pair, ticket)
    pair.ship(ticket)
    pair.run()
    _, again = pair.endings[ticket.generation].shipments
    assert isinstance(again.error, StaleTicket)
    assert again.num_bytes == 0
    pair.check_quiet()


@pytest.mark.parametrize("num_turns", range(12))
def test_revoked_at_any_moment(num_turns: int) -> None:
    """Both sides end the ticket exactly once and every slot comes back; what had landed is D's to judge."""
    pair = patient_ferry()
    ticket = pair.reserve(200)
    pair.ship(ticket)
    for _ in range(num_turns):
        pair.turn()
    pair.receiver.revoke(ticket.generation)
    pair.run(3.0)
    assert (pair.landed(ticket).error is None) == (pair.shipped(ticket).error is None)
    pair.check_quiet()


@pytest.mark.parametrize("num_turns", range(12))
def test_aborted_at_any_moment(num_turns: int) -> None:
    """The same from the other side; D is told at once."""
    pair = patient_ferry()
    ticket = pair.reserve(200)
    pair.ship(ticket)
    for _ in range(num_turns):
        pair.turn()
    pair.sender.abort(ticket, Cancelled("enough"))
    pair.run()
    assert (pair.landed(ticket).error is None) == (pair.shipped(ticket).error is None)
    pair.check_quiet()


def test_slots_of_a_held_write_stay_out_of_use() -> None:
    """Given up while a write is in flight: the landing slot is not lent again before the write has ended."""
    pair = patient_ferry(num_landing_slots=2)
    pair.fabric.faults.hold()
    ticket = pair.reserve(CHUNK_TOKENS * 2)
    pair.ship(ticket)
    pair.run(0.5)
    pair.receiver.revoke(ticket.generation)
    pair.run(20.0)
    assert isinstance(pair.landed(ticket).error, Cancelled)
    assert isinstance(pair.shipped(ticket).error, Cancelled)
    assert pair.receiver.slots.num_quarantined == 2
    assert pair.sender.slots.num_free == 2
    before = pair.target.clone()
    pair.fabric.faults.release()
    pair.run(2.0)
    assert torch.equal(pair.target, before)
    pair.check_quiet()
    after = pair.reserve(CHUNK_TOKENS)
    pair.ship(after)
    pair.run()
    check_landed(pair, after)


def test_an_abort_is_not_closed_while_a_write_is_in_flight() -> None:
    """P lets go of its blocks at once, but says CLOSED only when no byte of the transfer can arrive any more."""
    pair = patient_ferry()
    pair.fabric.faults.hold()
    ticket = pair.reserve(CHUNK_TOKENS)
    pair.ship(ticket)
    pair.run(0.5)
    pair.sender.abort(ticket, Cancelled("enough"))
    pair.run(2 * LEASE_S)
    pair.shipped(ticket)
    assert pair.receiver.slots.num_free == pair.receiver.slots.num_slots - 1
    pair.fabric.faults.release()
    pair.run(2.0)
    assert isinstance(pair.landed(ticket).error, StaleTicket)
    pair.check_quiet()


def test_forgetting_the_receiver_ends_its_transfers() -> None:
    """P lets go of the blocks of everything that went to a decode worker that is gone."""
    pair = patient_ferry()
    ticket = pair.reserve(100)
    pair.sender.open(ticket, 0.0)
    pair.turn()
    pair.fabric.kill(pair.receiver.worker)
    pair.sender.forget(pair.receiver.worker)
    pair.run()
    assert isinstance(pair.shipped(ticket).error, WorkerUnavailable)
    assert not pair.sender.is_active
    assert not pair.sender.is_connected(pair.receiver.worker)


def test_a_new_life_of_the_receiver_ends_the_transfers_to_the_old_one() -> None:
    """The handshake of a restarted decode worker does so without anybody's word."""
    pair = patient_ferry()
    ticket = pair.reserve(100)
    pair.sender.open(ticket, 0.0)
    pair.turn()
    old = pair.receiver
    pair.fabric.kill(old.worker)
    pair.receiver = pair.new_receiver()
    pair.connect()
    pair.run()
    assert isinstance(pair.shipped(ticket).error, WorkerUnavailable)
    again = pair.reserve(100)
    pair.ship(again)
    pair.run()
    assert pair.landed(again).error is None
    pair.check_quiet()


def test_tickets_of_two_lives_are_not_mixed_up() -> None:
    """Generations are counted anew in each life: a late tag of the old one cannot move the new one's transfer."""
    pair = patient_ferry()
    old = pair.reserve(100)
    pair.sender.open(old, 0.0)
    pair.turn()
    pair.fabric.kill(pair.receiver.worker)
    pair.receiver = pair.new_receiver()
    pair.connect()
    new = pair.reserve(100)
    assert new.generation == old.generation
    pair.sender.open(new, pair.clock.now)
    pair.turn()
    late = Frame(FrameKind.REVOKE, old.request_id, old.generation)
    pair.fabric.send_tag(old.decode_worker, pair.sender.worker, late.to_bytes())
    pair.sender.computed(new, 100, pair.blocks_of(new))
    pair.run()
    (ended,) = [one for one in pair.endings[new.generation].shipments if one.ticket == new]
    assert ended.error is None


def test_a_strangers_tags_change_nothing() -> None:
    """Answers of another worker, generation or request, and tags of the wrong direction, are counted and ignored."""
    pair = patient_ferry()
    ticket = pair.reserve(100)
    pair.sender.open(ticket, 0.0)
    pair.run()
    frames = [
        Frame(FrameKind.CREDIT, ticket.request_id, ticket.generation + 1),
        Frame(FrameKind.CREDIT, new_request_id(), ticket.generation),
        Frame(FrameKind.CLOSED, ticket.request_id, ticket.generation),
        Frame(FrameKind.CHUNK, ticket.request_id, ticket.generation),
    ]
    for frame in frames:
        pair.fabric.send_tag(pair.receiver.worker, pair.sender.worker, frame.to_bytes())
    pair.fabric.send_tag(pair.receiver.worker, pair.sender.worker, b"no tag of ours")
    revoke = Frame(FrameKind.REVOKE, ticket.request_id, ticket.generation).to_bytes()
    pair.fabric.send_tag(WorkerId.fresh("decode-9"), pair.sender.worker, revoke)
    pair.turn()
    assert pair.sender.num_stale_frames == len(frames) + 1
    pair.sender.computed(ticket, 100, pair.blocks_of(ticket))
    pair.run()
    check_landed(pair, ticket)
