"""Packs a chunk into a slot, verifies what has landed in one, and unpacks it. Knows the format, not slots' owners or tickets.

Nothing is written to a pool before every field and the digest have been checked. The check tells damage and mix-ups; a peer
that overwrites a slot while it is being read is beyond it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocol.errors import BadChunk, ConfigError, StaleTicket, TransferError
from protocol.layout import KvDtype, KvLayout
from protocol.wire_rule import LOSSLESS, WireRule
from transfer.codec.codec import ChunkPlan, Codec
from transfer.codec.digest import digest_of, write_digest
from transfer.codec.format import HEADER_BYTES, ChunkHeader, ChunkIdentity, must_equal
from transfer.codec.pool_view import PoolView
from transfer.codec.registry import BY_CODE, NATIVE
from transfer.codec.sizes import PayloadSizes, padded
from transfer.codec.tiers import (
    NUM_TIERS,
    TIER_8_BITS,
    TIER_16_BITS,
    TIER_NATIVE,
    Tiers,
    read_map,
    tier_counts,
    uniform,
    write_map,
)


def chunk_bytes(layout: KvLayout, dtype: KvDtype, num_tokens: int) -> int:
    """Exact bytes of a native chunk of `num_tokens` tokens that cross as `dtype`."""
    return NATIVE.sizes(layout, dtype, (num_tokens, *[0] * (NUM_TIERS - 1))).chunk_bytes


def max_tokens_per_slot(layout: KvLayout, dtype: KvDtype, slot_bytes: int, granule: int) -> int:
    """The largest multiple of `granule` tokens whose native chunk fits into a slot. Raises `ConfigError` when none does.

    However a chunk is written, it is no larger than the native one.
    """
    most = slot_bytes // (granule * layout.elements_per_token * dtype.num_bytes) * granule
    while most > 0 and chunk_bytes(layout, dtype, most) > slot_bytes:
        most -= granule
    if most <= 0:
        needed = chunk_bytes(layout, dtype, granule)
        raise ConfigError(
            f"a slot of {slot_bytes} bytes does not hold {granule} tokens: give it at least {needed} bytes"
        )
    return most


def native_plan(layout: KvLayout, identity: ChunkIdentity) -> ChunkPlan:
    """All tokens as the cache holds them."""
    return ChunkPlan.of(NATIVE, layout, identity, uniform(identity.num_tokens, TIER_NATIVE))


def pack(plan: ChunkPlan, source: PoolView | None, slot: memoryview) -> int:
    """Writes the chunk into `slot` and returns its length in bytes. Without a `source` scales and segments are zeros.

    Raises `TransferError` when it does not fit, when `source` does not cover the tokens, and for values that a lossy
    codec cannot send.
    """
    sizes, num_bytes = plan.sizes, plan.sizes.chunk_bytes
    if num_bytes > len(slot):
        raise TransferError(f"a chunk of {num_bytes} bytes does not fit into a slot of {len(slot)}")
    header = ChunkHeader(
        plan.identity, plan.codec.code, plan.counts, sizes.map_bytes, sizes.scale_bytes, sizes.payload_bytes
    )
    slot[:HEADER_BYTES] = header.to_bytes()
    payload = slot[HEADER_BYTES:num_bytes]
    if source is None:
        payload[:] = bytes(len(payload))
    else:
        _zero_around_segments(sizes, payload)
        plan.codec.encode(plan, source, payload)
    payload[: sizes.map_bytes] = write_map(plan.tiers)
    write_digest(slot[:num_bytes])
    return num_bytes


def verify(layout: KvLayout, expected: ChunkIdentity, chunk: memoryview, rule: WireRule = LOSSLESS) -> ChunkPlan:
    """Checks all of a landed chunk, `chunk` being exactly its bytes, against what was promised; what is in it.

    Damage comes first, so that a flipped bit is not taken for another transfer's chunk. Raises `StaleTicket` for another
    request or generation and `BadChunk` for everything else, with the field's name first.
    """
    header = ChunkHeader.from_bytes(chunk)
    must_equal("payload length", header.payload_bytes, len(chunk) - HEADER_BYTES)
    must_equal("digest", header.digest, digest_of(chunk))
    _check_identity(header.identity, expected)
    codec = BY_CODE.get(header.codec)
    if codec is None:
        raise BadChunk(f"codec: code {header.codec} is not known")
    must_equal("codec", codec.name.value, rule.codec.value)
    plan = _checked_plan(layout, header, codec, chunk[HEADER_BYTES:])
    _check_promise(plan, rule)
    codec.check(plan, chunk[HEADER_BYTES:])
    return plan


def unpack(
    layout: KvLayout, expected: ChunkIdentity, chunk: memoryview, target: PoolView, rule: WireRule = LOSSLESS
) -> ChunkPlan:
    """Verifies a landed chunk, then copies it into the pool; what was in it. Raises as `verify` does, with nothing copied."""
    plan = verify(layout, expected, chunk, rule)
    plan.codec.decode(plan, chunk[HEADER_BYTES:], target)
    return plan


def _check_identity(found: ChunkIdentity, expected: ChunkIdentity) -> None:
    for field in ("request_id", "generation"):
        theirs, ours = getattr(found, field), getattr(expected, field)
        if theirs != ours:
            raise StaleTicket(f"{field}: the chunk says {theirs}, {ours} is expected")
    for field in ("fingerprint", "chunk", "first_token", "num_tokens", "wire_dtype"):
        must_equal(field, getattr(found, field), getattr(expected, field))


def _checked_plan(layout: KvLayout, header: ChunkHeader, codec: Codec, payload: memoryview) -> ChunkPlan:
    """Counts, lengths, map and padding against each other; the identity has been compared."""
    counts, num_tokens = header.tier_counts, header.identity.num_tokens
    used = {tier for tier, count in enumerate(counts) if count}
    if sum(counts) != num_tokens or not used <= codec.tiers:
        raise BadChunk(f"tier counts: {counts} are not {num_tokens} tokens of {codec.name}")
    sizes = codec.sizes(layout, header.identity.wire_dtype, counts)
    must_equal("map bytes", header.map_bytes, sizes.map_bytes)
    must_equal("scale bytes", header.scale_bytes, sizes.scale_bytes)
    must_equal("payload length", header.payload_bytes, sizes.payload_bytes)
    tiers = _checked_map(bytes(payload[: sizes.map_bytes]), counts)
    if any(payload[start:end] != bytes(end - start) for start, end in _gaps(sizes)):
        raise BadChunk("padding: it is not zero")
    return ChunkPlan(codec, layout, header.identity, tiers, counts, sizes)


def _checked_map(raw: bytes, counts: tuple[int, ...]) -> Tiers:
    num_tokens = sum(counts)
    if counts[TIER_NATIVE] == num_tokens:  # by far the most common, and the quickest to look at
        must_equal("precision map", raw, bytes(len(raw)))
        return uniform(num_tokens, TIER_NATIVE)
    tiers = read_map(raw, num_tokens)
    if int(tiers.max()) >= NUM_TIERS or tier_counts(tiers) != counts or write_map(tiers) != raw:
        raise BadChunk("precision map: it does not agree with the tier counts")
    return tiers


def _check_promise(plan: ChunkPlan, rule: WireRule) -> None:
    """No token is less precise than its ticket says."""
    if rule.is_lossless:
        return
    if not rule.allows_int4 and int(plan.tiers.max()) > TIER_8_BITS:
        raise BadChunk("tier counts: there are tokens of fewer than 8 bits, which the ticket does not allow")
    sinks = plan.tiers[: max(0, rule.num_sinks - plan.identity.first_token)]
    if TIER_16_BITS in plan.codec.tiers and np.any(sinks != TIER_16_BITS):
        raise BadChunk("precision map: a sink token does not have 16 bits")


def _zero_around_segments(sizes: PayloadSizes, payload: memoryview) -> None:
    """A slot is used again and again: what is left of an earlier chunk must not show in padding."""
    for start, end in _gaps(sizes):
        payload[start:end] = bytes(end - start)


def _gaps(sizes: PayloadSizes) -> Sequence[tuple[int, int]]:
    """The padding of a payload: after the map, the scales and each segment."""
    gaps, start = [], 0
    for size in (sizes.map_bytes, sizes.scale_bytes, *sizes.segment_sizes):
        gaps.append((start + size, start + padded(size)))
        start += padded(size)
    return gaps
