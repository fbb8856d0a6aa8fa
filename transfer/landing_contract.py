"""What the landing side is given and what it answers: values, and the interface of the codec that it calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from protocol.errors import KvferryError
from protocol.ids import WorkerId
from protocol.layout import KvDtype, KvLayout
from protocol.ticket import Ticket
from protocol.wire_rule import LOSSLESS, WireRule


class Unpacker(Protocol):
    """Verifies a landed chunk and copies it into the cache."""

    layout: KvLayout

    def chunk_tokens(self, dtype: KvDtype, slot_bytes: int, rule: WireRule = LOSSLESS) -> int:
        """Most tokens of one chunk that fits into a slot by `rule`. Raises `ConfigError` when not even one block does."""
        ...

    def unpack(self, ticket: Ticket, chunk: int, block_ids: Sequence[int], slot: memoryview) -> None:
        """Raises `BadChunk` or `StaleTicket`, with nothing copied, unless the chunk is exactly the ticket's.

        An empty `block_ids` verifies only: the chunk is a link test's.
        """
        ...

    def bytes_by_tier(self) -> Mapping[str, int]:
        """Bytes of the chunks unpacked so far by their precision, `overhead` being what is no token's."""
        ...


@dataclass(frozen=True, slots=True)
class LandingConfig:
    """Bounds of the landing zone: slots per transfer, the lease of a ticket, and how often a quiet writer is asked again.

    `rule` is how KV is to be written on its way here, unless a request has its own. Lossless chunks have at most
    `max_chunk_tokens`, so that what a prefill step produced leaves when the step ends and a newcomer waits for little; the last
    has about `tail_tokens`. A lossy chunk has the size that its codec is best at.
    """

    window_slots: int = 4
    lease_s: float = 10.0
    revoke_again_s: float = 1.0
    rule: WireRule = LOSSLESS
    max_chunk_tokens: int = 32
    tail_tokens: int = 16


@dataclass(frozen=True, slots=True)
class LandingRequest:
    """What is to land: tokens `[first_token, num_tokens)` from `prefill_worker`. No `block_ids`: it is a link test. Without
    a `rule` it is written by the receiver's own.
    """

    request_id: str
    prefill_worker: WorkerId
    first_token: int
    num_tokens: int
    block_ids: tuple[int, ...]
    rule: WireRule | None = None


@dataclass(frozen=True, slots=True)
class LandingEnded:
    """The end of one ticket. Without `error` every chunk is in the cache."""

    ticket: Ticket
    error: KvferryError | None
    num_bytes: int
