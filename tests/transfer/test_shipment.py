"""One transfer's state on the prefill worker, without wires."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import TransferError
from protocol.ids import WorkerId, new_request_id
from protocol.layout import KvDtype
from protocol.ticket import Ticket
from transfer.frames import Frame, FrameKind
from transfer.shipment import MAX_SPENT, ChunkDue, Shipment, SpentTickets


def ticket(num_tokens: int, chunk_tokens: int = 4, slots: tuple[int, ...] = (7, 3)) -> Ticket:
    """A ticket with a window of two slots."""
    return Ticket(
        request_id=new_request_id(),
        prefill_worker=WorkerId("prefill-0", "a"),
        decode_worker=WorkerId("decode-0", "b"),
        generation=5,
        slots=slots,
        slot_bytes=4096,
        first_token=0,
        num_tokens=num_tokens,
        chunk_tokens=chunk_tokens,
        dtype=KvDtype.FLOAT32,
        lease_s=9.0,
    )


def computed(num_tokens: int, chunk_tokens: int = 4) -> Shipment:
    """A shipment whose every token is computed."""
    shipment = Shipment(ticket(num_tokens, chunk_tokens), now=0.0, stall_s=30.0)
    shipment.computed(num_tokens, (0, 1))
    return shipment


def answer(kind: FrameKind, shipment: Shipment, due: ChunkDue) -> Frame:
    """The receiver's word on a chunk."""
    return Frame(kind, shipment.ticket.request_id, shipment.ticket.generation, due.chunk, due.slot)


def credit(shipment: Shipment, due: ChunkDue) -> None:
    """The receiver took a chunk."""
    shipment.take_credit(answer(FrameKind.CREDIT, shipment, due), now=1.0)


def reject(shipment: Shipment, due: ChunkDue) -> None:
    """The receiver could not verify a chunk."""
    shipment.take_reject(answer(FrameKind.REJECT, shipment, due), now=1.0)


def take(shipment: Shipment) -> ChunkDue:
    """The next chunk, which must be due."""
    due = shipment.next_due()
    assert due is not None
    return due


def test_only_whole_computed_chunks_go() -> None:
    """A chunk waits until its last token is computed; the last chunk is as long as what is left."""
    shipment = Shipment(ticket(6), now=0.0, stall_s=30.0)
    shipment.computed(3, (0,))
    assert shipment.next_due() is None
    shipment.computed(5, (0, 1))
    assert shipment.next_due() == ChunkDue(0, 7)
    assert shipment.next_due() is None
    shipment.computed(6, (0, 1))
    assert shipment.next_due() == ChunkDue(1, 3)


def test_the_newest_importance_stays() -> None:
    """Progress that brings none leaves what is known; what is new replaces it."""
    shipment = Shipment(ticket(6), now=0.0, stall_s=30.0)
    shipment.computed(3, (0,))
    assert shipment.importance is None
    first, second = np.ones(4, dtype=np.float32), np.ones(6, dtype=np.float32)
    shipment.computed(4, (0,), first)
    shipment.computed(5, (0, 1))
    assert shipment.importance is first
    shipment.computed(6, (0, 1), second)
    assert shipment.importance is second


def test_the_window_bounds_what_is_out() -> None:
    """No more chunks are out than slots were lent, and a slot is used again only after its credit."""
    shipment = computed(16)
    first, second = take(shipment), take(shipment)
    assert shipment.next_due() is None
    credit(shipment, second)
    assert shipment.next_due() == ChunkDue(2, second.slot)
    credit(shipment, first)
    assert shipment.next_due() == ChunkDue(3, first.slot)


def test_a_credit_counts_once() -> None:
    """A doubled credit, or one for another slot or a chunk that never went, lends no slot twice."""
    shipment = computed(16)
    first = take(shipment)
    take(shipment)
    credit(shipment, ChunkDue(first.chunk, 99))
    credit(shipment, ChunkDue(3, first.slot))
    assert shipment.next_due() is None
    credit(shipment, first)
    credit(shipment, first)
    assert take(shipment).slot == first.slot
    assert shipment.next_due() is None


def test_a_rejected_chunk_goes_once_more_into_its_slot() -> None:
    """It is sent again before anything new, and given up when it is refused a second time."""
    shipment = computed(16)
    first = take(shipment)
    reject(shipment, first)
    assert shipment.next_due() == first
    assert shipment.error is None
    reject(shipment, first)
    assert isinstance(shipment.error, TransferError)
    assert shipment.next_due() is None


def test_a_doubled_reject_counts_once() -> None:
    """Before the chunk has gone again, a second copy of the same reject says nothing new."""
    shipment = computed(16)
    first = take(shipment)
    reject(shipment, first)
    reject(shipment, first)
    assert shipment.error is None
    assert shipment.next_due() == first
    assert take(shipment).chunk == 1


def test_a_credit_does_not_take_back_a_chunk_that_must_go_again() -> None:
    """A slot that a queued re-send will write is not lent to another chunk meanwhile."""
    shipment = computed(16)
    first = take(shipment)
    reject(shipment, first)
    credit(shipment, first)
    assert {take(shipment).slot, take(shipment).slot} == {7, 3}
    assert shipment.next_due() is None


def test_complete_when_every_chunk_was_taken() -> None:
    """Not before the last credit, in whatever order they come."""
    shipment = computed(10, chunk_tokens=4)
    dues = [take(shipment), take(shipment)]
    for due in reversed(dues):
        credit(shipment, due)
    last = take(shipment)
    assert not shipment.is_complete
    credit(shipment, last)
    assert shipment.is_complete
    assert not shipment.is_waiting_for_peer


def test_the_first_moment_of_the_first_token_counts() -> None:
    """Bytes acknowledged before it are hidden; a second word changes nothing, nor do credits that follow or come twice."""
    shipment = computed(12)
    for num_bytes in (100, 70):
        due = take(shipment)
        shipment.sent(due, num_bytes, now=0.0)
        credit(shipment, due)
        credit(shipment, due)
        shipment.sampled()
    assert (shipment.num_hidden_bytes, shipment.num_acknowledged_bytes, shipment.num_bytes) == (100, 170, 170)


def test_the_first_error_stays() -> None:
    """What failed first is what is reported."""
    shipment = computed(4)
    first = TransferError("first")
    shipment.fail(first)
    shipment.fail(TransferError("second"))
    assert shipment.error is first


def test_spent_tickets_are_bounded() -> None:
    """The memory of tickets that may not be used again forgets the oldest."""
    spent = SpentTickets()
    for generation in range(MAX_SPENT + 1):
        spent.add(("decode-0@b", generation))
    assert ("decode-0@b", 0) not in spent
    assert ("decode-0@b", 1) in spent
    assert ("decode-0@b", MAX_SPENT) in spent


@given(st.integers(1, 40), st.integers(1, 7), st.integers(1, 4), st.data())
def test_any_order_of_answers_ends_whole(num_tokens: int, chunk: int, num_slots: int, data: st.DataObject) -> None:
    """Under random progress and answers no slot is ever used twice at a time, and all chunks are taken exactly once."""
    shipment = Shipment(ticket(num_tokens, chunk, tuple(range(num_slots))), now=0.0, stall_s=30.0)
    out: list[ChunkDue] = []
    rejected: set[int] = set()
    taken: list[int] = []
    num_computed = 0
    while not shipment.is_complete:
        num_computed = min(num_tokens, num_computed + data.draw(st.integers(1, 9)))
        shipment.computed(num_computed, ())
        while (due := shipment.next_due()) is not None:
            assert due.slot not in {one.slot for one in out}
            out.append(due)
        if not out:
            continue
        due = out.pop(data.draw(st.integers(0, len(out) - 1)))
        if due.chunk not in rejected and data.draw(st.booleans()):
            rejected.add(due.chunk)
            reject(shipment, due)
        else:
            taken.append(due.chunk)
            credit(shipment, due)
    assert sorted(taken) == list(range(shipment.ticket.num_chunks))
    assert shipment.error is None
