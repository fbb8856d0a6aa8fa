"""Every byte of a chunk: what a prefill worker writes into one landing slot. All numbers are little-endian.

    offset  size  field
    0       4     magic "KVFY"
    4       2     format version, 1
    6       2     header length, 128
    8       8     layout fingerprint: what must be equal on both sides (`KvLayout.fingerprint`)
    16      16    request id
    32      8     generation of the ticket
    40      4     chunk index within the transfer
    44      4     first token: its position in the sequence
    48      4     number of tokens, at least 1
    52      1     wire dtype: 1 float32, 2 float16, 3 bfloat16
    53      1     codec: 0 native
    54      2     zero
    56      32    tier counts, 8 of 4 bytes: tokens at each tier; they add up to the number of tokens
    88      4     map bytes, unpadded
    92      4     scale bytes, unpadded
    96      8     payload length: all bytes after the header, padding included
    104     8     digest: XXH3 (64 bits, seed 0) of header and payload, these 8 bytes taken as zero
    112     16    zero
    128           payload: precision map, scales, segments, each padded with zeros to a multiple of 64 bytes

Precision map: 4 bits a token, the tier's code; token 2i is in the low half of byte i. Tier 0 is the wire dtype itself.

Scales: none at tier 0.

Segments: one for each tier that has tokens, in the order of the codes. That of tier 0 is `[layer, k|v, token, kv_head,
head_dim]` in the wire dtype, tokens in the order of the sequence.

A codec adds tiers by taking a codec code and defining scales and segments for its tier codes; the header does not change.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from protocol.errors import BadChunk
from protocol.ids import request_id_of, wire_id
from protocol.layout import KvDtype, KvLayout

MAGIC = b"KVFY"
VERSION = 1
NUM_TIERS = 8
ALIGNMENT_BYTES = 64
_LAYOUT = struct.Struct("<4sHHQ16sQIIIBBH8IIIQQ16s")
HEADER_BYTES = _LAYOUT.size
DIGEST_OFFSET = 104
DIGEST_BYTES = 8

DTYPE_CODES = {KvDtype.FLOAT32: 1, KvDtype.FLOAT16: 2, KvDtype.BFLOAT16: 3}
_DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}


@dataclass(frozen=True, slots=True)
class ChunkIdentity:
    """Which chunk of which transfer this is. The sender writes it; the receiver knows it beforehand and compares."""

    fingerprint: int
    request_id: str
    generation: int
    chunk: int
    first_token: int
    num_tokens: int
    wire_dtype: KvDtype


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """A header as it lies in the slot. `payload_bytes` includes padding, `map_bytes` and `scale_bytes` do not."""

    identity: ChunkIdentity
    codec: int
    tier_counts: tuple[int, ...]
    map_bytes: int
    scale_bytes: int
    payload_bytes: int
    digest: int = 0

    def to_bytes(self) -> bytes:
        """The `HEADER_BYTES` bytes of this header."""
        one = self.identity
        return _LAYOUT.pack(
            MAGIC,
            VERSION,
            HEADER_BYTES,
            one.fingerprint,
            wire_id(one.request_id),
            one.generation,
            one.chunk,
            one.first_token,
            one.num_tokens,
            DTYPE_CODES[one.wire_dtype],
            self.codec,
            0,
            *self.tier_counts,
            self.map_bytes,
            self.scale_bytes,
            self.payload_bytes,
            self.digest,
            bytes(16),
        )

    @classmethod
    def from_bytes(cls, raw: bytes | memoryview) -> ChunkHeader:
        """Reads a header. Raises `BadChunk`, naming the field, for what no version 1 sender writes."""
        if len(raw) < HEADER_BYTES:
            raise BadChunk(f"length: {len(raw)} bytes hold no header of {HEADER_BYTES}")
        magic, version, header_bytes, fingerprint, request, generation, *rest = _LAYOUT.unpack_from(raw)
        chunk, first_token, num_tokens, dtype, codec, zero, *sizes = rest
        tier_counts, (map_bytes, scale_bytes, payload_bytes, digest, tail) = sizes[:NUM_TIERS], sizes[NUM_TIERS:]
        must_equal("magic", magic, MAGIC)
        must_equal("version", version, VERSION)
        must_equal("header length", header_bytes, HEADER_BYTES)
        must_equal("zero fields", (zero, tail), (0, bytes(16)))
        if dtype not in _DTYPES:
            raise BadChunk(f"wire dtype: code {dtype} is not known")
        identity = ChunkIdentity(
            fingerprint, request_id_of(request), generation, chunk, first_token, num_tokens, _DTYPES[dtype]
        )
        return cls(identity, codec, tuple(tier_counts), map_bytes, scale_bytes, payload_bytes, digest)


@dataclass(frozen=True, slots=True)
class PayloadSizes:
    """Unpadded bytes of the parts of a payload."""

    map_bytes: int
    scale_bytes: int
    segment_bytes: int

    @property
    def scales_offset(self) -> int:
        """Where the scales begin, from the start of the payload."""
        return padded(self.map_bytes)

    @property
    def segments_offset(self) -> int:
        """Where the segments begin, from the start of the payload."""
        return self.scales_offset + padded(self.scale_bytes)

    @property
    def payload_bytes(self) -> int:
        """The whole payload with its padding."""
        return self.segments_offset + padded(self.segment_bytes)


def padded(num_bytes: int) -> int:
    """The next multiple of `ALIGNMENT_BYTES`."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def native_sizes(layout: KvLayout, dtype: KvDtype, num_tokens: int) -> PayloadSizes:
    """The parts of a chunk whose tokens are all at tier 0."""
    return PayloadSizes(-(-num_tokens // 2), 0, num_tokens * layout.elements_per_token * dtype.num_bytes)


def must_equal(field: str, found: object, wanted: object) -> None:
    """Raises `BadChunk`, naming the field, unless both are equal."""
    if found != wanted:
        raise BadChunk(f"{field}: the chunk says {found!r}, {wanted!r} is expected")
