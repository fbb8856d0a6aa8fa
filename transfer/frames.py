"""The tags that cross the KV plane beside the bytes: 56 bytes each, little-endian, compared whole.

A tag names a transfer by request id and generation, so that no tag of one transfer can be taken for another's. Tags of one
sender may overtake each other (only a write's own tag follows its bytes): no rule here depends on their order.

    offset  size  field
    0       4     magic "KVT1"
    4       4     kind
    8       16    request id
    24      8     generation
    32      4     chunk index
    36      4     slot index in the landing zone
    40      8     payload bytes in the slot
    48      8     reserved, zero
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum

from protocol.errors import BadChunk
from protocol.ids import request_id_of, wire_id

_LAYOUT = struct.Struct("<4sI16sQIIQQ")
_MAGIC = b"KVT1"
FRAME_BYTES = _LAYOUT.size


class FrameKind(IntEnum):
    """What a tag says. The first three go from the prefill to the decode worker, the others back."""

    CHUNK = 1
    """The chunk is in the slot. Rides on its write."""
    RENEW = 2
    """The prefill worker lives and still means to ship: the lease is renewed."""
    CLOSED = 3
    """No write of this transfer is in flight and none will follow: its slots may be used again."""
    CREDIT = 4
    """The chunk was verified and unpacked; its slot may be written again."""
    REJECT = 5
    """The chunk did not verify; send it again into the same slot."""
    REVOKE = 6
    """The decode worker gave the transfer up: stop writing, and answer CLOSED once all writes are terminal."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One tag."""

    kind: FrameKind
    request_id: str
    generation: int
    chunk: int = 0
    slot: int = 0
    num_bytes: int = 0

    def to_bytes(self) -> bytes:
        """The tag as it crosses."""
        return _LAYOUT.pack(
            _MAGIC, self.kind, wire_id(self.request_id), self.generation, self.chunk, self.slot, self.num_bytes, 0
        )

    @classmethod
    def from_bytes(cls, raw: bytes) -> Frame:
        """The tag that `raw` is. Raises `BadChunk` when it is none."""
        if len(raw) != FRAME_BYTES:
            raise BadChunk(f"a tag has {FRAME_BYTES} bytes, got {len(raw)}")
        magic, kind, request, generation, chunk, slot, num_bytes, _ = _LAYOUT.unpack(raw)
        if magic != _MAGIC or kind not in FrameKind._value2member_map_:
            raise BadChunk(f"not a tag of this version: magic {magic!r}, kind {kind}")
        return cls(FrameKind(kind), request_id_of(request), generation, chunk, slot, num_bytes)
