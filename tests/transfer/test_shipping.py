"""Both ends of a transfer over the local wires: happy, slow and broken."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from protocol.errors import Cancelled, LayoutMismatch, TransferError, WorkerUnavailable
from tests.transfer.ferry import CHUNK_TOKENS, LEASE_S, STALL_S, Ferry, FerryOptions, check_landed, patient_ferry
from transfer.arena import PAGE_BYTES
from transfer.frames import Frame, FrameKind
from transfer.shipping_contract import HiddenBytes
from transfer.transport import WriteRequest


@pytest.mark.parametrize("num_tokens", [1, 3, 4, 5, CHUNK_TOKENS - 1, CHUNK_TOKENS, CHUNK_TOKENS + 1, 113, 200])
def test_kv_arrives_bit_for_bit_and_nothing_else_changes(num_tokens: int) -> None:
    """Around the borders of blocks, chunks and windows; no byte outside the tokens' places is written."""
    pair = patient_ferry()
    before = pair.target.clone()
    ticket = pair.reserve(num_tokens)
    pair.ship(ticket)
    pair.run()
    check_landed(pair, ticket)
    where = torch.zeros_like(before, dtype=torch.bool)
    for place in range(num_tokens):
        where[:, :, place // 4, place % 4] = True
    assert torch.equal(pair.target[~where], before[~where])
    assert pair.landed(ticket).num_bytes == pair.shipped(ticket).num_bytes
    pair.check_quiet()


def test_landing_memory_is_bounded_by_the_window() -> None:
    """At no time are more slots of the landing zone written than the window has, however much is computed."""
    pair = patient_ferry()
    ticket = pair.reserve(240)
    used: set[int] = set()

    def note(request: WriteRequest) -> bool:
        used.add(request.remote_slot)
        return False

    pair.fabric.faults.hold()
    pair.ship(ticket)
    pair.run(5.0)
    assert pair.receiver.slots.num_free == 4
    assert not pair.is_ended(ticket)
    pair.fabric.faults.release()
    pair.fabric.faults.fail_write(when=note)
    pair.run()
    check_landed(pair, ticket)
    assert used == set(ticket.slots)
    pair.check_quiet()


@pytest.mark.parametrize("num_outbox_slots", [1, 2, 8])
def test_many_transfers_share_few_slots(num_outbox_slots: int) -> None:
    """Transfers take turns on the outbox and all of them end."""
    pair = patient_ferry(num_landing_slots=10, num_outbox_slots=num_outbox_slots)
    tickets = [pair.reserve(num_tokens) for num_tokens in (100, 60, 200)]
    for ticket in tickets:
        pair.ship(ticket)
    pair.run()
    for ticket in tickets:
        check_landed(pair, ticket)
    pair.check_quiet()


def test_a_corrupt_chunk_is_sent_again_once() -> None:
    """One flipped bit costs one more write, and the KV is right."""
    pair = patient_ferry()
    ticket = pair.reserve(100)
    pair.fabric.faults.corrupt_write(bit=2000)
    pair.ship(ticket)
    pair.run()
    check_landed(pair, ticket)
    assert pair.shipped(ticket).num_bytes > pair.landed(ticket).num_bytes
    pair.check_quiet()


@pytest.mark.parametrize("bit", [0, 40, 8 * 104, 8 * 128, 20_000])
def test_a_chunk_that_stays_corrupt_ends_the_transfer(bit: int) -> None:
    """Refused twice, it is given up on both sides, wherever the damage is, and nothing of it was copied."""
    pair = patient_ferry()
    before = pair.target.clone()
    ticket = pair.reserve(CHUNK_TOKENS)
    pair.fabric.faults.corrupt_write(num=100, bit=bit)
    pair.ship(ticket)
    pair.run(3.0)
    assert isinstance(pair.landed(ticket).error, TransferError)
    assert pair.shipped(ticket).error is not None
    assert torch.equal(pair.target, before)
    pair.check_quiet()


def test_doubled_tags_do_no_harm() -> None:
    """Chunks and answers that are told twice count once."""
    pair = patient_ferry()
    pair.fabric.faults.duplicate_tag(num=100)
    pair.fabric.faults.duplicate_notification(num=100)
    tickets = [pair.reserve(100), pair.reserve(200)]
    for ticket in tickets:
        pair.ship(ticket)
    pair.run()
    for ticket in tickets:
        check_landed(pair, ticket)
    assert pair.receiver.num_stale_frames > 0
    pair.check_quiet()


@pytest.mark.parametrize("fault", ["drop_write", "drop_tag"])
def test_a_lost_chunk_ends_in_a_stall(fault: str) -> None:
    """P renews the lease while it waits, gives up after its patience, and D learns it from CLOSED."""
    pair = patient_ferry()
    getattr(pair.fabric.faults, fault)()
    ticket = pair.reserve(100)
    pair.ship(ticket)
    pair.run(STALL_S - 1)
    assert not pair.is_ended(ticket)
    pair.run(2.0)
    assert isinstance(pair.shipped(ticket).error, TransferError)
    assert isinstance(pair.landed(ticket).error, TransferError)
    pair.check_quiet()


def test_a_failed_write_ends_the_transfer_at_once() -> None:
    """D learns within a turn or two, not at the end of a lease."""
    pair = patient_ferry()
    pair.fabric.faults.fail_write()
    ticket = pair.reserve(100)
    pair.ship(ticket)
    pair.run()
    assert isinstance(pair.shipped(ticket).error, TransferError)
    assert isinstance(pair.landed(ticket).error, TransferError)
    pair.check_quiet()


@pytest.mark.parametrize("kind", [FrameKind.CREDIT, FrameKind.REJECT, FrameKind.CLOSED, FrameKind.REVOKE])
def test_any_lost_answer_is_survived(kind: FrameKind) -> None:
    """Whatever tag is lost: both sides end the ticket once, and no slot stays behind."""
    pair = patient_ferry()
    if kind is not FrameKind.CREDIT:
        pair.fabric.faults.corrupt_write(num=3 if kind is FrameKind.REVOKE else 2, when=is_first_slot)
    pair.fabric.faults.drop_notification(when=is_tag(kind))
    ticket = pair.reserve(100)
    pair.ship(ticket)
    pair.run(STALL_S + LEASE_S + 3)
    pair.landed(ticket)
    pair.shipped(ticket)
    pair.check_quiet()


def is_tag(kind: FrameKind) -> Callable[[bytes], bool]:
    """Matches tags of one kind."""
    return lambda raw: Frame.from_bytes(raw).kind is kind


def is_first_slot(request: WriteRequest) -> bool:
    """Matches writes to the first landing slot."""
    return request.remote_slot == 0


def test_a_queue_of_five_leases_keeps_the_ticket() -> None:
    """While P lives and still means to ship, D holds blocks and slots; then the KV crosses as ever."""
    pair = patient_ferry()
    ticket = pair.reserve(100)
    pair.sender.open(ticket, pair.clock.now)
    pair.run(5 * LEASE_S)
    assert not pair.is_ended(ticket)
    pair.sender.computed(ticket, 100, pair.blocks_of(ticket))
    pair.run()
    check_landed(pair, ticket)


def test_a_ticket_that_was_long_on_its_way_is_renewed_at_once() -> None:
    """P says that it lives when it opens a ticket, not a third of a lease later."""
    pair = patient_ferry()
    ticket = pair.reserve(100)
    pair.run(LEASE_S * 0.9)
    pair.sender.open(ticket, pair.clock.now)
    pair.run(LEASE_S * 2)
    assert not pair.is_ended(ticket)


def test_slots_larger_than_the_outbox_are_refused() -> None:
    """A chunk of such a receiver would not fit: the handshake fails and says both sizes."""
    pair = Ferry(is_connected=False)
    wide = Ferry(FerryOptions(slot_bytes=2 * PAGE_BYTES), is_connected=False)
    with pytest.raises(LayoutMismatch, match=str(2 * PAGE_BYTES)):
        pair.sender.connect(wide.receiver.address())


def test_a_chunk_that_cannot_be_packed_ends_one_transfer_and_not_the_thread() -> None:
    """Blocks outside the pool fail their own ticket; the next one is served."""
    pair = patient_ferry()
    bad, good = pair.reserve(10), pair.reserve(10)
    pair.ship(bad, (10_000, 1, 2))
    pair.ship(good)
    pair.run()
    assert pair.shipped(bad).error is not None
    assert pair.landed(bad).error is not None
    check_landed(pair, good)
    pair.check_quiet()


@pytest.mark.parametrize("num_corrupt", [0, 1])
def test_what_was_acknowledged_when_the_first_token_came_was_hidden(num_corrupt: int) -> None:
    """Chunks whose credits are back by then; one that is sent twice counts once, and what comes later not at all."""
    pair = patient_ferry()
    ticket = pair.reserve(5 * CHUNK_TOKENS)
    if num_corrupt:
        pair.fabric.faults.corrupt_write()
    pair.sender.open(ticket, pair.clock.now)
    pair.sender.computed(ticket, 2 * CHUNK_TOKENS, pair.blocks_of(ticket))
    pair.run()
    assert pair.sender.hidden == HiddenBytes()
    pair.sender.sampled(ticket)
    pair.sender.computed(ticket, ticket.num_tokens, pair.blocks_of(ticket))
    pair.run()
    check_landed(pair, ticket)
    num_bytes = pair.landed(ticket).num_bytes
    assert pair.sender.hidden == HiddenBytes(num_bytes * 2 // 5, num_bytes)
    assert (pair.shipped(ticket).num_bytes > num_bytes) is bool(num_corrupt)


def test_a_shipment_without_a_first_token_hides_nothing() -> None:
    """As a link test's; nor does one that is given up."""
    pair = patient_ferry()
    test, given_up = pair.reserve(100, block_ids=()), pair.reserve(100)
    pair.ship(test)
    pair.sender.open(given_up, pair.clock.now)
    pair.sender.sampled(given_up)
    pair.sender.abort(given_up, Cancelled("no longer wanted"))
    pair.run(LEASE_S)
    assert pair.shipped(test).error is None
    assert pair.shipped(given_up).error is not None
    assert pair.sender.hidden == HiddenBytes()


def test_an_open_ticket_is_not_opened_twice() -> None:
    """A ticket that is being served goes on as if nothing had been said."""
    pair = patient_ferry()
    ticket = pair.reserve(100)
    pair.sender.open(ticket, 0.0)
    pair.ship(ticket)
    pair.run()
    check_landed(pair, ticket)


def test_a_link_test_crosses_and_writes_nothing() -> None:
    """Without block ids chunks are verified only."""
    pair = patient_ferry()
    before = pair.target.clone()
    ticket = pair.reserve(300, block_ids=())
    pair.sender.test(ticket, 0.0)
    pair.run()
    assert pair.landed(ticket).error is None
    assert pair.shipped(ticket).error is None
    assert torch.equal(pair.target, before)


def test_a_link_test_of_which_a_chunk_is_lost_ends_before_a_prompt_would() -> None:
    """Whoever waits for it asks again; a prompt under way on the same link is waited for."""
    pair = patient_ferry()
    config = pair.sender.config
    prompt, test = pair.reserve(40), pair.reserve(40, block_ids=())
    pair.fabric.faults.drop_write(num=1000)
    pair.ship(prompt)
    pair.sender.test(test, 0.0)
    pair.run(config.test_stall_s + 1.0)
    assert isinstance(pair.shipped(test).error, TransferError)
    pair.run(config.stall_s)
    assert isinstance(pair.shipped(prompt).error, TransferError)


def test_hundreds_in_a_row_leave_nothing() -> None:
    """Hundreds of transfers in a row: slots, quarantine and lists are as empty as before the first."""
    pair = patient_ferry()
    for number in range(300):
        ticket = pair.reserve(1 + number % 60)
        pair.ship(ticket)
        pair.run()
        assert pair.landed(ticket).error is None
        pair.check_quiet()


def test_after_the_end_nothing_waits() -> None:
    """Closing ends what is open and lets no later call hang."""
    pair = patient_ferry()
    ticket = pair.reserve(10)
    pair.sender.open(ticket, 0.0)
    pair.turn()
    pair.sender.close()
    (ended,) = pair.sender.take_ended()
    assert isinstance(ended.error, Cancelled)
    with pytest.raises(WorkerUnavailable):
        pair.sender.connect(pair.receiver.address()).result(0)
