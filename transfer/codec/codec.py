"""What a codec is: it turns tokens of a pool into a chunk's payload and back. One is chosen by the code in the header."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from protocol.layout import KvDtype, KvLayout
from protocol.wire_rule import WireCodec
from transfer.codec.format import ChunkIdentity
from transfer.codec.pool_view import PoolView
from transfer.codec.sizes import PayloadSizes
from transfer.codec.tiers import Tiers, tier_counts


@dataclass(frozen=True, slots=True, eq=False)
class ChunkPlan:
    """What a chunk's payload is made of: `tiers` has one code for each of the identity's tokens, `counts` their numbers."""

    codec: Codec
    layout: KvLayout
    identity: ChunkIdentity
    tiers: Tiers
    counts: tuple[int, ...]
    sizes: PayloadSizes

    @classmethod
    def of(cls, codec: Codec, layout: KvLayout, identity: ChunkIdentity, tiers: Tiers) -> ChunkPlan:
        """The plan of a chunk whose tokens have these tiers."""
        counts = tier_counts(tiers)
        return cls(codec, layout, identity, tiers, counts, codec.sizes(layout, identity.wire_dtype, counts))


class Codec(Protocol):
    """Scales and segments of one way to write KV. Header, map and digest are written, and checked, around it."""

    code: int
    name: WireCodec
    tiers: frozenset[int]
    """Codes that its tokens may have."""

    def sizes(self, layout: KvLayout, dtype: KvDtype, counts: Sequence[int]) -> PayloadSizes:
        """Exact bytes of a payload whose tokens cross as `dtype` and are so many at each tier."""
        ...

    def encode(self, plan: ChunkPlan, source: PoolView, payload: memoryview) -> None:
        """Writes scales and segments into `payload`, which is zero wherever it is not a segment.

        Raises `TransferError` for values that cannot be sent and for a table that does not cover the tokens.
        """
        ...

    def check(self, plan: ChunkPlan, payload: memoryview) -> None:
        """Raises `BadChunk` for scales or values that no sender writes; lengths and tiers have been checked."""
        ...

    def decode(self, plan: ChunkPlan, payload: memoryview, target: PoolView) -> None:
        """Writes a chunk that was verified into the pool. Raises `TransferError` for a table that does not cover it."""
        ...
