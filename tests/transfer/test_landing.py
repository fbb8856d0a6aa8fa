"""The receiving side: what it grants, what it takes, and what it refuses."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from protocol.errors import (
    BadRequest,
    Cancelled,
    KvferryError,
    LayoutMismatch,
    NotConnected,
    OutOfSlots,
    StaleTicket,
    TransferError,
    WorkerUnavailable,
)
from protocol.ids import WorkerId, new_request_id
from protocol.layout import KvDtype
from protocol.ticket import Ticket
from protocol.wire_rule import LOSSLESS, WireCodec, WireRule
from tests.transfer.ferry import CHUNK_TOKENS, Ferry, FerryOptions, layout
from transfer.frames import Frame, FrameKind
from transfer.landing_contract import LandingConfig, LandingRequest

LEASE_S = 9.0


def ferry(num_slots: int = 8, window: int = 4) -> Ferry:
    """A pair with a lease of nine seconds."""
    landing = LandingConfig(window_slots=window, lease_s=LEASE_S, revoke_again_s=1.0)
    return Ferry(FerryOptions(num_landing_slots=num_slots, landing=landing))


def tell(pair: Ferry, frame: Frame, sender: WorkerId | None = None) -> None:
    """A tag of the prefill worker's, outside of its protocol."""
    pair.fabric.send_tag(sender or pair.sender.worker, pair.receiver.worker, frame.to_bytes())


def frame_of(ticket: Ticket, kind: FrameKind, **fields: int) -> Frame:
    """A tag of a ticket's transfer."""
    return Frame(kind, ticket.request_id, ticket.generation, **fields)


def test_a_stranger_gets_no_ticket() -> None:
    """Without a handshake nothing is reserved, and no slot is lost by asking."""
    pair = Ferry(is_connected=False)
    with pytest.raises(NotConnected):
        pair.reserve(10)
    assert pair.receiver.slots.num_free == pair.receiver.slots.num_slots


@pytest.mark.parametrize(
    ("field", "value"), [("num_layers", 3), ("num_kv_heads", 2), ("head_dim", 4), ("model_fingerprint", "other")]
)
def test_another_layout_is_refused_with_its_field(field: str, value: object) -> None:
    """The handshake names the field, and no ticket can be had afterwards."""
    pair = Ferry(is_connected=False)
    with pytest.raises(LayoutMismatch, match=field):
        pair.receiver.connect(pair.sender.address(), layout(**{field: value}))
    pair.turn()
    with pytest.raises(NotConnected):
        pair.reserve(10)


@pytest.mark.parametrize("tokens", [(0, 0), (5, 5), (6, 5), (-1, 5)])
def test_an_empty_range_is_refused(tokens: tuple[int, int]) -> None:
    """A ticket without a chunk would never end."""
    pair = ferry()
    with pytest.raises(BadRequest):
        pair.receiver.reserve(LandingRequest(new_request_id(), pair.sender.worker, *tokens, block_ids=(0, 1)), 0.0)
    pair.check_quiet()


@pytest.mark.parametrize("own", [LOSSLESS, WireRule(WireCodec.SPECTRUM, 0.9)], ids=lambda rule: rule.codec)
def test_a_requests_rule_takes_the_place_of_the_receivers_own(own: WireRule) -> None:
    """In the ticket and in the length of its chunks; without one it is the receiver's."""
    pair = Ferry(FerryOptions(landing=LandingConfig(rule=own)))
    for rule in (None, LOSSLESS, WireRule(WireCodec.CHANNEL, 0.8)):
        asked = LandingRequest(new_request_id(), pair.sender.worker, 0, 100, tuple(range(25)), rule)
        ticket = pair.receiver.reserve(asked, pair.clock.now)
        assert ticket.rule == (own if rule is None else rule)
        assert ticket.chunk_tokens == pair.receiver.chunk_tokens_from(pair.sender.worker, ticket.rule)
        assert (ticket.chunk_tokens == CHUNK_TOKENS) is ticket.rule.is_lossless
        pair.ship(ticket)
        pair.run()
        assert pair.landed(ticket).error is None
    pair.check_quiet()


def test_a_ticket_takes_no_more_than_its_window() -> None:
    """However long the prompt, the slots lent are the window's; a short one takes what it needs."""
    pair = ferry()
    assert len(pair.reserve(200).slots) == 4
    assert len(pair.reserve(CHUNK_TOKENS + 1).slots) == 2
    assert len(pair.reserve(1).slots) == 1


def test_too_few_slots_narrow_the_window_and_none_refuse() -> None:
    """A transfer over one slot is slow; over none there is none."""
    pair = ferry(num_slots=5)
    pair.reserve(200)
    assert len(pair.reserve(200).slots) == 1
    with pytest.raises(OutOfSlots):
        pair.reserve(1)


def test_a_lease_runs_out_and_the_slots_wait_for_the_writer() -> None:
    """Expired, the ticket ends with `StaleTicket`; its slots are in quarantine until P says that it is quiet."""
    pair = ferry()
    ticket = pair.reserve(10)
    pair.fabric.faults.drop_notification(num=1)  # the first REVOKE
    pair.turn(LEASE_S + 0.1)
    assert isinstance(pair.landed(ticket).error, StaleTicket)
    assert pair.receiver.slots.num_quarantined == 1
    pair.run(2.0)  # asked again, P answers although it never saw the ticket
    pair.check_quiet()


def test_renewal_keeps_a_ticket_alive() -> None:
    """A ticket whose writer says that it lives outlasts its lease; then silence ends it at its own deadline."""
    pair = ferry()
    renewed, silent = pair.reserve(10), pair.reserve(10)
    for _ in range(10):
        tell(pair, frame_of(renewed, FrameKind.RENEW))
        pair.turn(LEASE_S / 2)
    assert not pair.is_ended(renewed)
    assert isinstance(pair.landed(silent).error, StaleTicket)
    pair.run(LEASE_S * 1.5)
    assert isinstance(pair.landed(renewed).error, StaleTicket)
    pair.check_quiet()


def test_the_writers_word_of_giving_up_ends_a_ticket_at_once() -> None:
    """CLOSED frees the slots without quarantine."""
    pair = ferry()
    ticket = pair.reserve(10)
    tell(pair, frame_of(ticket, FrameKind.CLOSED))
    pair.turn()
    assert isinstance(pair.landed(ticket).error, TransferError)
    pair.check_quiet()


def test_revoke_ends_once_and_unknown_tickets_not_at_all() -> None:
    """Giving up twice, or what has ended, or what never was, changes nothing."""
    pair = ferry()
    ticket = pair.reserve(10)
    for generation in (ticket.generation, ticket.generation, 999):
        pair.receiver.revoke(generation)
    pair.run(3.0)
    assert isinstance(pair.landed(ticket).error, Cancelled)
    pair.check_quiet()


def test_a_strangers_tags_change_nothing() -> None:
    """Tags of another worker, request, generation, chunk or slot are counted and ignored."""
    pair = ferry()
    other = pair.new_sender("prefill-9")
    accepted = pair.receiver.connect(other.address(), layout())
    pair.turn()
    accepted.result(0)
    ticket = pair.reserve(10)
    frames = [
        (frame_of(ticket, FrameKind.CLOSED), other.worker),
        (frame_of(ticket, FrameKind.CHUNK, slot=ticket.slots[0], num_bytes=200), other.worker),
        (replace(frame_of(ticket, FrameKind.CLOSED), request_id=new_request_id()), None),
        (replace(frame_of(ticket, FrameKind.CLOSED), generation=ticket.generation + 1), None),
        (frame_of(ticket, FrameKind.CHUNK, chunk=1, slot=ticket.slots[0]), None),
        (frame_of(ticket, FrameKind.CHUNK, chunk=0, slot=ticket.slots[0] + 1), None),
        (frame_of(ticket, FrameKind.CREDIT), None),
        (frame_of(ticket, FrameKind.REVOKE), None),
    ]
    before = pair.target.clone()
    for frame, sender in frames:
        tell(pair, frame, sender)
    pair.fabric.send_tag(pair.sender.worker, pair.receiver.worker, b"no tag of ours")
    pair.turn()
    assert pair.receiver.num_stale_frames == len(frames) + 1
    assert not pair.is_ended(ticket)
    assert torch.equal(pair.target, before)


def test_a_quarantined_slot_is_freed_by_its_own_writer_only() -> None:
    """CLOSED of another worker or request leaves it where it is."""
    pair = ferry()
    other = pair.new_sender("prefill-9")
    pair.receiver.connect(other.address(), layout())
    ticket = pair.reserve(10)
    pair.fabric.faults.drop_notification(num=1)  # the REVOKE, so that P does not answer by itself
    pair.receiver.revoke(ticket.generation)
    pair.turn()
    tell(pair, frame_of(ticket, FrameKind.CLOSED), other.worker)
    tell(pair, replace(frame_of(ticket, FrameKind.CLOSED), request_id=new_request_id()))
    pair.turn()
    assert pair.receiver.slots.num_quarantined == 1
    tell(pair, frame_of(ticket, FrameKind.CLOSED))
    pair.turn()
    pair.check_quiet()


def test_forgetting_a_worker_ends_what_it_had() -> None:
    """Its open tickets fail, its quarantine is over, and it needs a new handshake."""
    pair = ferry()
    open_ticket, revoked = pair.reserve(10), pair.reserve(10)
    pair.fabric.kill(pair.sender.worker)
    pair.receiver.revoke(revoked.generation)
    pair.receiver.pump(0.0)
    assert pair.receiver.slots.num_quarantined == 1
    pair.receiver.forget(pair.sender.worker)
    pair.receiver.pump(0.0)
    errors = {ended.ticket.generation: ended.error for ended in pair.receiver.take_ended()}
    assert isinstance(errors[open_ticket.generation], WorkerUnavailable)
    assert isinstance(errors[revoked.generation], Cancelled)
    assert pair.receiver.slots.num_free == pair.receiver.slots.num_slots
    with pytest.raises(NotConnected):
        pair.reserve(10)


def test_a_new_life_of_a_worker_ends_the_old_one() -> None:
    """The handshake of a restarted prefill worker frees all that its earlier incarnation held."""
    pair = ferry()
    ticket = pair.reserve(10)
    pair.fabric.kill(pair.sender.worker)
    old, pair.sender = pair.sender, pair.new_sender()
    pair.connect()
    pair.run()
    assert isinstance(pair.landed(ticket).error, WorkerUnavailable)
    pair.check_quiet()
    with pytest.raises(NotConnected):
        pair.receiver.chunk_tokens_from(old.worker)


def test_a_narrower_cache_takes_narrower_chunks() -> None:
    """The receiver's dtype crosses when it is the narrower one, and more tokens fit into a slot."""
    pair = Ferry(is_connected=False)
    accepted = pair.receiver.connect(pair.sender.address(), layout(dtype=KvDtype.BFLOAT16))
    pair.turn()
    accepted.result(0)
    assert pair.reserve(10).dtype is KvDtype.BFLOAT16


def test_a_failure_of_the_codec_ends_one_ticket_and_not_the_thread() -> None:
    """A chunk that cannot be unpacked for whatever reason gives its own transfer up."""
    pair = ferry()
    bad = pair.reserve(10, block_ids=(10_000, 1, 2))  # outside the pool
    pair.ship(bad)
    good = pair.reserve(10)
    pair.ship(good)
    pair.run(3.0)
    assert isinstance(pair.landed(bad).error, KvferryError)
    assert pair.landed(good).error is None
    pair.check_quiet()


def test_after_the_end_nothing_waits() -> None:
    """Closing ends what is open, and calls that come later fail at once instead of waiting for a thread that is gone."""
    pair = ferry()
    pair.reserve(10)
    pending = pair.receiver.forget(WorkerId.fresh("prefill-9"))
    pair.receiver.close()
    (ended,) = pair.receiver.take_ended()
    assert isinstance(ended.error, Cancelled)
    for future in (pending, pair.receiver.forget(pair.sender.worker)):
        with pytest.raises(WorkerUnavailable):
            future.result(0)
    assert pair.receiver.slots.num_free == pair.receiver.slots.num_slots
