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
    53      1     codec: 0 native, 1 channel, 2 spectrum, 3 uniform-int8, 4 uniform-int4, 5 fp8
    54      2     zero
    56      32    tier counts, 8 of 4 bytes: tokens at each tier; they add up to the number of tokens
    88      4     map bytes, unpadded
    92      4     scale bytes, unpadded
    96      8     payload length: all bytes after the header, padding included
    104     8     digest: XXH3 (64 bits, seed 0) of header and payload, these 8 bytes taken as zero
    112     16    zero
    128           payload: precision map, scales, segments, each padded with zeros to a multiple of 64 bytes

Precision map: 4 bits a token, the tier's code; token 2i is in the low half of byte i, the half after an odd number is zero.
    0 the wire dtype itself (native)    1 16 bits: bfloat16 where the wire dtype is bfloat16, float16 else
    2 to 6: 8, 7, 6, 5 and 4 bits       7 free

    native          tier 0
    channel         tiers 1 to 6
    spectrum        tiers 1, 2 and 6
    uniform-int8    tier 2
    uniform-int4    tier 6
    fp8             tier 2

Below, L layers, H heads, D = kv_heads * head_dim, n tokens; those at tier 1 are f, all others m = n - f. Tokens are in the
order of the sequence, dimensions from the slowest to the fastest, an array of `min`, `step` or `scale` is float16.
A nibble is half a byte; "low nibble K, high nibble V" is one byte for element (layer, token, d) of K and that of V.

Native. No scales; one segment, `[L, k|v, n, D]` in the wire dtype.

Tier 1 of any codec: one segment, `[L, k|v, f, D]`, 2 bytes a value; no scales. The segment is there when f > 0.

Channel. K's parameters are per channel over groups of tokens, V's per token and head. The m tokens make
g = max(1, (m + 32) // 64) groups: 64 tokens each, and what is left in the last, so 33 to 96 there (or all m).
    scales      K min `[L, g, D]`, K step `[L, g, D]`, V min `[L, m, H]`, V step `[L, m, H]`
    base        `[L, m, D]` bytes, low nibble K, high nibble V: c = floor(t + 1/2), t = (x - min) / step, 0 <= c <= 15
    planes      p = 1 to 4, each a segment where it has tokens: those at 4 + p bits or more, m_p of them. For each layer
                Q = ceil(m_p * D / 4) bytes: bit q of byte i is of K's element q * Q + i of `[m_p, D]`, bit 4 + q of V's
                (zero past the end). The bits of plane p are the p-th highest of u, 0 to 15: in which sixteenth of its cell t
                lies. Cells are [c - 1/2, c + 1/2], but [0, 1/2] for c = 0 and [29/2, 15] for c = 15.
With k planes, top k bits of u being u_k, a value is min + step * s with s = c + (u_k + 1/2) / 2^k - 1/2 for c from 1 to 14,
u_k / (2^(k+1) - 1) for 0 and 15 - (2^k - 1 - u_k) / (2^(k+1) - 1) for 15: within step / 2^(k+1). With none it is
min + step * c. `min` is rounded down and `step` = (max - min) / 15 up, so that no value lies outside.

Spectrum, uniform-int8, uniform-int4, fp8. Symmetric, per token and head, K and V alike.
    scales      `[L, k|v, m, H]`: max(absmax, 1e-8) / q, rounded up; q is 127 at 8 bits, 7 at 4 bits, 448 in fp8
    tier 2      `[L, k|v, tokens, D]`, one byte a value: round(x / scale) in two's complement; in fp8 x / scale as e4m3fn
    tier 6      `[L, tokens, D]` bytes, low nibble K, high nibble V: round(x / scale) + 8

Segments are in the order of tier 1, then the base and the planes (channel), or tiers 2 and 6 (others); a segment of no
tokens has no bytes. Values that are not finite, or whose `min`, `step` or `scale` is not, are never sent (native excepted).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from protocol.errors import BadChunk
from protocol.ids import request_id_of, wire_id
from protocol.layout import KvDtype
from transfer.codec.tiers import NUM_TIERS

MAGIC = b"KVFY"
VERSION = 1
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


def must_equal(field: str, found: object, wanted: object) -> None:
    """Raises `BadChunk`, naming the field, unless both are equal."""
    if found != wanted:
        raise BadChunk(f"{field}: the chunk says {found!r}, {wanted!r} is expected")
