"""One prompt on a prefill worker: its phase, its blocks, its ticket and who waits for its first token."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from engine.batch import SequenceSlice
from engine.block_pool import BlockTable
from protocol.phase import Phase, PhaseRecord
from protocol.request import GeneratedToken, GenerateRequest
from protocol.ticket import Ticket
from scheduling.work import Work


@dataclass(frozen=True, slots=True)
class PrefillAnswer:
    """The first token, and how many prompt tokens came from this worker's prefix cache."""

    first_token: GeneratedToken
    num_cached_tokens: int


@dataclass(slots=True)
class PrefillSequence:
    """Owns `table` from admission until the last chunk has been taken or given up."""

    request: GenerateRequest
    ticket: Ticket | None
    arrival: int
    expires_at: float
    record: PhaseRecord
    answer: Future[PrefillAnswer] = field(default_factory=Future)
    table: BlockTable | None = None
    num_cached: int = 0

    @property
    def work(self) -> Work:
        """What the scheduler sees."""
        return Work(self.request.request_id, self.request.num_prompt_tokens, self.num_cached, self.arrival)

    def move(self, now: float, to: Phase) -> None:
        """Advances the phase. Raises `IllegalMove`."""
        self.record = self.record.advance(now, to)

    def slice_of(self, num_tokens: int) -> SequenceSlice:
        """The next `num_tokens` prompt tokens; the prompt's last chunk also draws the first token of the answer."""
        if self.table is None:
            raise RuntimeError(f"request {self.request.request_id} has no blocks")
        end = self.num_cached + num_tokens
        is_last = end == self.request.num_prompt_tokens
        return SequenceSlice(
            request_id=self.request.request_id,
            token_ids=self.request.prompt_token_ids[self.num_cached : end],
            start=self.num_cached,
            block_ids=self.table.block_ids,
            sampling=self.request.sampling if is_last else None,
        )
