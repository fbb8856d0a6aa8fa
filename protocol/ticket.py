"""A decode worker's promise to receive one request's KV: where the bytes may land, and for which life of the worker."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import WorkerId
from protocol.layout import KvDtype
from protocol.wire_rule import LOSSLESS, WireRule

TicketKey = tuple[str, int]
TAIL_STEP = 16
"""Tokens of a block, as a rule: most chunks then begin with one."""


@dataclass(frozen=True, slots=True)
class LandingZone:
    """A worker's landing arena as a peer must know it: plain integers, from which both sides build the same slots."""

    base_address: int
    num_slots: int
    slot_bytes: int


@dataclass(frozen=True, slots=True)
class Ticket:
    """One granted transfer.

    Invariants: `slots` is the window (indices into the decode worker's landing zone); a chunk may be written to a slot
    of the window that is unused or whose credit has come back. Tokens `[first_token, num_tokens)` cross; those before
    are in the decode worker's prefix cache already. `generation` is unique within the decode worker's incarnation.
    `lease_s` counts from the moment the ticket was issued, and anew from every chunk that lands. `rule` is how all chunks
    are written: one that was written otherwise is refused. Chunks hold `chunk_tokens` tokens; the last one, which nothing
    can hide, has about `tail_tokens` where that is not 0: from there to `TAIL_STEP` less one more, so that it begins a
    multiple of `TAIL_STEP` after `first_token`.
    """

    request_id: str
    prefill_worker: WorkerId
    decode_worker: WorkerId
    generation: int
    slots: tuple[int, ...]
    slot_bytes: int
    first_token: int
    num_tokens: int
    chunk_tokens: int
    dtype: KvDtype
    lease_s: float
    rule: WireRule = LOSSLESS
    tail_tokens: int = 0

    @property
    def key(self) -> TicketKey:
        """Tells the tickets of all decode workers apart: each counts its own generations."""
        return str(self.decode_worker), self.generation

    @property
    def tail_start(self) -> int:
        """First token of the last chunk."""
        num_sent = self.num_tokens - self.first_token
        if not self.tail_tokens:
            return self.first_token + (num_sent - 1) // self.chunk_tokens * self.chunk_tokens
        return self.first_token + max(0, num_sent - self.tail_tokens) // TAIL_STEP * TAIL_STEP

    @property
    def num_chunks(self) -> int:
        """Chunks that the transfer consists of."""
        return -(-(self.tail_start - self.first_token) // self.chunk_tokens) + 1

    def token_range(self, chunk: int) -> tuple[int, int]:
        """First token of a chunk and the one after its last."""
        tail_start, start = self.tail_start, self.first_token + chunk * self.chunk_tokens
        return (
            (start, min(start + self.chunk_tokens, tail_start)) if start < tail_start else (tail_start, self.num_tokens)
        )
