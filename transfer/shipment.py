"""The state of one transfer on the prefill worker, without I/O: which chunks may go, are under way, or have been taken."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import KvferryError, TransferError
from protocol.ticket import Ticket, TicketKey
from transfer.frames import Frame, FrameKind
from transfer.pacer import Pacer
from transfer.progress import ProgressReports
from transfer.shipping_contract import ImportanceScores


@dataclass(frozen=True, slots=True)
class ChunkDue:
    """A chunk that can be packed and written now, and the slot of the landing zone it goes to."""

    chunk: int
    slot: int


MAX_SPENT = 4096
"""Tickets remembered that were revoked or have ended: opened late, or again, they are refused."""


class SpentTickets:
    """Keys of the last `MAX_SPENT` tickets under which nothing may be written any more."""

    def __init__(self) -> None:
        self._keys: OrderedDict[tuple[str, int], None] = OrderedDict()

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self._keys

    def add(self, key: tuple[str, int]) -> None:
        """Remembers a ticket, at the cost of the oldest."""
        self._keys[key] = None
        if len(self._keys) > MAX_SPENT:
            self._keys.popitem(last=False)


class Shipment:
    """One ticket being served. Methods raise nothing; a transfer that cannot go on carries its `error`.

    `num_bytes` were sent; `num_acknowledged_bytes` were verified at the other end, and `num_hidden_bytes` of them when the
    prompt's first token was sampled, None before it is and for a link test. A planned transfer has a `pacer` and `reports`.
    After `stall_s` without an answer from the other end it is given up.
    """

    def __init__(
        self,
        ticket: Ticket,
        now: float,
        stall_s: float,
        pacer: Pacer | None = None,
        reports: ProgressReports | None = None,
    ) -> None:
        self.ticket = ticket
        self.stall_s = stall_s
        self.pacer = pacer
        self.reports = reports
        self.block_ids: Sequence[int] = ()
        self.importance: ImportanceScores | None = None
        self.error: KvferryError | None = None
        self.moved_at = now
        self.renew_at = now  # at once: part of the lease may have been spent on the way here
        self.num_bytes = 0
        self.num_acknowledged_bytes = 0
        self.num_hidden_bytes: int | None = None
        self._num_computed = 0
        self._next_chunk = 0
        self._free_slots = deque(ticket.slots)
        self._again: deque[ChunkDue] = deque()
        self._sent_twice: set[int] = set()
        self._unanswered: dict[int, int] = {}  # chunk -> slot
        self._sizes: dict[int, int] = {}  # chunk under way -> its bytes
        self._taken: set[int] = set()

    @property
    def key(self) -> TicketKey:
        """Names the transfer among all of this worker's."""
        return self.ticket.key

    @property
    def is_complete(self) -> bool:
        """Whether every chunk has been verified and unpacked at the other end."""
        return len(self._taken) == self.ticket.num_chunks

    @property
    def is_waiting_for_peer(self) -> bool:
        """Whether only the decode worker can move this on: chunks are out, or all its slots are."""
        return bool(self._unanswered)

    def computed(self, num_tokens: int, block_ids: Sequence[int], importance: ImportanceScores | None = None) -> None:
        """The KV of tokens `[0, num_tokens)` is in the cache, in these blocks. The newest `importance` counts."""
        self._num_computed = max(self._num_computed, num_tokens)
        self.block_ids = block_ids
        if importance is not None:
            self.importance = importance

    def sampled(self) -> None:
        """The prompt's first token is there: what has been acknowledged by now was hidden behind the prefill."""
        if self.num_hidden_bytes is None:
            self.num_hidden_bytes = self.num_acknowledged_bytes

    @property
    def has_due(self) -> bool:
        """Whether a chunk is computed and has a slot to go to, or must go again."""
        if self.error is not None:
            return False
        is_computed = self._next_chunk < self.ticket.num_chunks and (
            self.ticket.token_range(self._next_chunk)[1] <= self._num_computed
        )
        return bool(self._again) or (is_computed and bool(self._free_slots))

    def next_due(self) -> ChunkDue | None:
        """The next chunk that is computed and has a slot to go to; it counts as under way from now on."""
        if not self.has_due:
            return None
        if self._again:
            return self._again.popleft()
        due = ChunkDue(self._next_chunk, self._free_slots.popleft())
        self._next_chunk += 1
        self._unanswered[due.chunk] = due.slot
        return due

    def sent(self, due: ChunkDue, num_bytes: int, now: float) -> None:
        """A chunk that was due is on its way; one that goes again counts again in `num_bytes`."""
        self.num_bytes += num_bytes
        self._sizes[due.chunk] = num_bytes
        if self.pacer is not None:
            self.pacer.posted(num_bytes, now)
        if self.reports is not None:
            self.reports.begin(now)

    def take(self, frame: Frame, now: float) -> bool:
        """Takes the decode worker's word on a chunk; false for a tag that is not this transfer's."""
        if frame.request_id != self.ticket.request_id or frame.kind not in (FrameKind.CREDIT, FrameKind.REJECT):
            return False
        (self.take_credit if frame.kind is FrameKind.CREDIT else self.take_reject)(frame, now)
        return True

    def take_credit(self, frame: Frame, now: float) -> None:
        """The chunk was taken: its slot may be written again. A credit that is not owed is ignored."""
        if self._unanswered.get(frame.chunk) == frame.slot and ChunkDue(frame.chunk, frame.slot) not in self._again:
            del self._unanswered[frame.chunk]
            self._taken.add(frame.chunk)
            self.num_acknowledged_bytes += self._sizes.pop(frame.chunk, 0)
            self._free_slots.append(frame.slot)
            self.moved_at = now

    def take_reject(self, frame: Frame, now: float) -> None:
        """The chunk did not verify: it goes once more; a second time ends the transfer."""
        again = ChunkDue(frame.chunk, frame.slot)
        if self._unanswered.get(frame.chunk) != frame.slot or again in self._again:
            return
        if frame.chunk in self._sent_twice:
            self.fail(TransferError(f"chunk {frame.chunk} was refused twice"))
            return
        self._sent_twice.add(frame.chunk)
        self._again.append(again)
        self.moved_at = now

    def report(self, now: float, *, is_ended: bool = False) -> None:
        """Reports what has been acknowledged, if it is time to and anybody wants to know."""
        if self.reports is None:
            return
        if is_ended:
            self.reports.end(self.num_acknowledged_bytes, now)
        else:
            self.reports.advance(self.num_acknowledged_bytes, now)

    def fail(self, error: KvferryError) -> None:
        """No further chunk goes out. The first error stays."""
        self.error = self.error or error
