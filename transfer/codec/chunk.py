"""Packs a chunk into a slot, verifies what has landed in one, and unpacks it. Knows the format, not slots' owners or tickets.

Nothing is written to a pool before every field and the digest have been checked. The check tells damage and mix-ups; a peer
that overwrites a slot while it is being read is beyond it.
"""

from __future__ import annotations

from protocol.errors import BadChunk, ConfigError, StaleTicket, TransferError
from protocol.layout import KvDtype, KvLayout
from transfer.codec.codec import Codec
from transfer.codec.digest import digest_of, write_digest
from transfer.codec.format import HEADER_BYTES, ChunkHeader, ChunkIdentity, PayloadSizes, must_equal, native_sizes
from transfer.codec.native import NativeCodec
from transfer.codec.pool_view import PoolView

NATIVE = NativeCodec()
CODECS: dict[int, Codec] = {NATIVE.code: NATIVE}


def chunk_bytes(layout: KvLayout, dtype: KvDtype, num_tokens: int) -> int:
    """Exact bytes of a native chunk of `num_tokens` tokens that cross as `dtype`."""
    return HEADER_BYTES + native_sizes(layout, dtype, num_tokens).payload_bytes


def max_tokens_per_slot(layout: KvLayout, dtype: KvDtype, slot_bytes: int, granule: int) -> int:
    """The largest multiple of `granule` tokens whose chunk fits into a slot. Raises `ConfigError` when none does."""
    most = slot_bytes // (granule * layout.elements_per_token * dtype.num_bytes) * granule
    while most > 0 and chunk_bytes(layout, dtype, most) > slot_bytes:
        most -= granule
    if most <= 0:
        needed = chunk_bytes(layout, dtype, granule)
        raise ConfigError(
            f"a slot of {slot_bytes} bytes does not hold {granule} tokens: give it at least {needed} bytes"
        )
    return most


def pack(layout: KvLayout, identity: ChunkIdentity, source: PoolView | None, slot: memoryview) -> int:
    """Writes the chunk into `slot` and returns its length in bytes. Without a `source` its segments are zeros.

    Raises `TransferError` when it does not fit or when `source` does not cover the tokens.
    """
    header = NATIVE.header(layout, identity)
    num_bytes = HEADER_BYTES + header.payload_bytes
    if num_bytes > len(slot):
        raise TransferError(f"a chunk of {num_bytes} bytes does not fit into a slot of {len(slot)}")
    slot[:HEADER_BYTES] = header.to_bytes()
    payload = slot[HEADER_BYTES:num_bytes]
    sizes = native_sizes(layout, identity.wire_dtype, identity.num_tokens)
    if source is None:
        payload[:] = bytes(len(payload))
    else:
        _zero_around_segments(sizes, payload)
        NATIVE.encode(header, source, payload)
    write_digest(slot[:num_bytes])
    return num_bytes


def verify(layout: KvLayout, expected: ChunkIdentity, chunk: memoryview) -> ChunkHeader:
    """Checks all of a landed chunk, `chunk` being exactly its bytes; its header when nothing is wrong.

    Damage comes first, so that a flipped bit is not taken for another transfer's chunk. Raises `StaleTicket` for another
    request or generation and `BadChunk` for everything else, with the field's name first.
    """
    header = ChunkHeader.from_bytes(chunk)
    must_equal("payload length", header.payload_bytes, len(chunk) - HEADER_BYTES)
    must_equal("digest", header.digest, digest_of(chunk))
    _check_identity(header.identity, expected)
    codec = CODECS.get(header.codec)
    if codec is None:
        raise BadChunk(f"codec: code {header.codec} is not known")
    codec.check(layout, header)
    codec.check_map(header, chunk[HEADER_BYTES:])
    return header


def unpack(layout: KvLayout, expected: ChunkIdentity, chunk: memoryview, target: PoolView) -> None:
    """Verifies a landed chunk, then copies it into the pool. Raises as `verify` does, with nothing copied."""
    header = verify(layout, expected, chunk)
    CODECS[header.codec].decode(header, chunk[HEADER_BYTES:], target)


def _check_identity(found: ChunkIdentity, expected: ChunkIdentity) -> None:
    for field in ("request_id", "generation"):
        theirs, ours = getattr(found, field), getattr(expected, field)
        if theirs != ours:
            raise StaleTicket(f"{field}: the chunk says {theirs}, {ours} is expected")
    for field in ("fingerprint", "chunk", "first_token", "num_tokens", "wire_dtype"):
        must_equal(field, getattr(found, field), getattr(expected, field))


def _zero_around_segments(sizes: PayloadSizes, payload: memoryview) -> None:
    """A slot is used again and again: what is left of an earlier chunk must not show in padding or map."""
    payload[: sizes.segments_offset] = bytes(sizes.segments_offset)
    end = sizes.segments_offset + sizes.segment_bytes
    payload[end:] = bytes(len(payload) - end)
