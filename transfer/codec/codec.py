"""What a codec is: it turns tokens of a pool into a chunk's payload and back. One is chosen by the code in the header."""

from __future__ import annotations

from typing import Protocol

from protocol.layout import KvLayout
from transfer.codec.format import ChunkHeader, ChunkIdentity
from transfer.codec.pool_view import PoolView


class Codec(Protocol):
    """Map, scales and segments of one way to write KV. The header and the digest are written around it."""

    code: int

    def header(self, layout: KvLayout, identity: ChunkIdentity) -> ChunkHeader:
        """The header of the chunk that `encode` will write: tier counts and exact lengths, no digest yet."""
        ...

    def encode(self, header: ChunkHeader, source: PoolView, payload: memoryview) -> None:
        """Writes scales and segments into `payload`, which is zero wherever it is not a segment."""
        ...

    def check(self, layout: KvLayout, header: ChunkHeader) -> None:
        """Raises `BadChunk`, naming the field, unless counts and lengths agree with each other and with the layout."""
        ...

    def check_map(self, header: ChunkHeader, payload: memoryview) -> None:
        """Raises `BadChunk` unless the precision map agrees with the tier counts."""
        ...

    def decode(self, header: ChunkHeader, payload: memoryview, target: PoolView) -> None:
        """Copies a chunk that was verified into the pool."""
        ...
