"""One request on a decode worker: its phase, its tokens, its blocks, and the landing that may still own them."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from engine.batch import SequenceSlice
from engine.block_pool import BlockTable
from protocol.ids import WorkerId
from protocol.phase import Phase, PhaseRecord
from protocol.request import GenerateRequest
from protocol.ticket import Ticket
from scheduling.work import Work


@dataclass(slots=True)
class Reservation:
    """A request for a ticket: who will write, and who waits for it."""

    prefill_worker: WorkerId
    ticket: Future[Ticket] = field(default_factory=Future)

    def fail(self, error: BaseException) -> None:
        """Tells whoever still waits for the ticket that there will be none."""
        if not self.ticket.done() and self.ticket.set_running_or_notify_cancel():
            self.ticket.set_exception(error)


@dataclass(slots=True)
class DecodeSequence:
    """Owns `table`, except between a granted ticket and the end of its landing (`landing_generation` is set meanwhile).

    `tokens` are the prompt and what has been generated; the KV of the first `num_cached` is in the cache.
    """

    request: GenerateRequest
    router_id: str
    arrival: int
    expires_at: float
    record: PhaseRecord
    tokens: list[int]
    reservation: Reservation | None = None
    table: BlockTable | None = None
    num_cached: int = 0
    landing_generation: int | None = None
    has_first_token: bool = False
    kv_due_at: float | None = None

    @property
    def num_generated(self) -> int:
        """Tokens of the answer so far, the prefill worker's first one among them."""
        return len(self.tokens) - self.request.num_prompt_tokens

    @property
    def wants_ticket(self) -> bool:
        """Whether its prompt's KV is to come from a prefill worker that waits for a ticket."""
        return self.reservation is not None and not self.has_first_token

    @property
    def has_blocks(self) -> bool:
        """Whether blocks are taken for it, its own or its landing's."""
        return self.table is not None or self.landing_generation is not None

    @property
    def work(self) -> Work:
        """What the scheduler sees."""
        return Work(self.request.request_id, len(self.tokens), self.num_cached, self.arrival)

    def move(self, now: float, to: Phase) -> None:
        """Advances the phase. Raises `IllegalMove`."""
        self.record = self.record.advance(now, to)

    def held_table(self) -> BlockTable:
        """The block table, which must be there."""
        if self.table is None:
            raise RuntimeError(f"request {self.request.request_id} has no blocks")
        return self.table

    def slice_of(self, num_tokens: int) -> SequenceSlice:
        """The next `num_tokens` tokens without KV; if they are the last known ones, the next token is drawn."""
        end = self.num_cached + num_tokens
        return SequenceSlice(
            request_id=self.request.request_id,
            token_ids=self.tokens[self.num_cached : end],
            start=self.num_cached,
            block_ids=self.held_table().block_ids,
            sampling=self.request.sampling if end == len(self.tokens) else None,
        )

    def drop_blocks(self) -> None:
        """Gives the blocks back; all KV has to be computed again."""
        if self.table is not None:
            self.table.release()
            self.table = None
        self.num_cached = 0
