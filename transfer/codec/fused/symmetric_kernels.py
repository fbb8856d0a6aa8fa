"""Triton kernels of the symmetric codecs. Arrays are contiguous; shapes are those of `symmetric_parts.Tier`.

Launched over layers in the last axis of the grid. L layers, n tokens of the tier among m coded ones, H heads of `HEAD`
elements, `ROW` elements a row. Each kernel passes once over cache and codes. Within a layer offsets are 32 bits wide, else 64.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from transfer.codec.fused.numbers import (
    e4m3_codes,
    e4m3_values,
    fit_scale,
    signed_codes,
    to_elements,
    to_float32,
)
from transfer.codec.fused.pool import note_beyond, places_of

OFFSET = tl.constexpr(8)
MAX_8_BITS, MAX_4_BITS, MAX_FP8 = tl.constexpr(127.0), tl.constexpr(7.0), tl.constexpr(448.0)


@triton.jit
def _scaled(numbers, is_inside, scales, is_token, farthest, limit, MAX_CODE: tl.constexpr):
    """The scale of each token of a tile `[token, element of one head]`, stored: float16 `[token, 1]`."""
    magnitude = tl.max(tl.where(is_inside, tl.abs(numbers), 0.0), axis=1)
    note_beyond(farthest, -magnitude, magnitude, limit)
    scale = fit_scale(magnitude, MAX_CODE)
    tl.store(scales, scale, mask=is_token)
    return scale[:, None]


@triton.jit(do_not_specialize=["num_tokens", "num_coded"], do_not_specialize_on_alignment=["scales"])
def encode_8_bits(
    pool,
    slots,
    scales,
    places,
    segment,
    farthest,
    limit,
    num_tokens,
    num_coded,
    half_elements,
    KIND: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    ROW: tl.constexpr,
    HEAD: tl.constexpr,
    TOKENS: tl.constexpr,
    ELEMENTS: tl.constexpr,
):
    """Grid (blocks of tokens, K's heads and V's, L): scales, and bytes `[L, k|v, n, D]`."""
    heads = ROW // HEAD
    which, head = tl.program_id(1) // heads, tl.program_id(1) % heads
    half = tl.program_id(2).to(tl.int64) * 2 + which
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    within = tl.arange(0, ELEMENTS)
    is_token = tokens < num_tokens
    is_inside = is_token[:, None] & (within < HEAD)[None, :]
    elements = head * HEAD + within
    found = places_of(slots, tokens, is_token, elements, half_elements, which, ROW)
    numbers = to_float32(tl.load(pool + found, mask=is_inside, other=0), KIND)
    place = tl.load(places + tokens, mask=is_token, other=0)
    stored = scales + (half * num_coded + place) * heads + head
    if IS_FLOAT:
        codes = e4m3_codes(numbers, _scaled(numbers, is_inside, stored, is_token, farthest, limit, MAX_FP8))
    else:
        codes = signed_codes(numbers, _scaled(numbers, is_inside, stored, is_token, farthest, limit, MAX_8_BITS))
    written = segment + half * num_tokens * ROW + tokens[:, None] * ROW + elements[None, :]
    tl.store(written, (codes & 0xFF).to(tl.uint8), mask=is_inside)


@triton.jit(do_not_specialize=["num_tokens", "num_coded"], do_not_specialize_on_alignment=["scales"])
def encode_4_bits(
    pool,
    slots,
    scales,
    places,
    segment,
    farthest,
    limit,
    num_tokens,
    num_coded,
    half_elements,
    KIND: tl.constexpr,
    ROW: tl.constexpr,
    HEAD: tl.constexpr,
    TOKENS: tl.constexpr,
    ELEMENTS: tl.constexpr,
):
    """Grid (blocks of tokens, H, L): scales of K and V, and bytes `[L, n, D]`, low nibble K."""
    head, layer = tl.program_id(1), tl.program_id(2).to(tl.int64)
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    within = tl.arange(0, ELEMENTS)
    is_token = tokens < num_tokens
    is_inside = is_token[:, None] & (within < HEAD)[None, :]
    elements = head * HEAD + within
    found = places_of(slots, tokens, is_token, elements, half_elements, 0, ROW)
    place = tl.load(places + tokens, mask=is_token, other=0)
    stored = scales + (layer * 2 * num_coded + place) * (ROW // HEAD) + head
    numbers = to_float32(tl.load(pool + found, mask=is_inside, other=0), KIND)
    keys = signed_codes(numbers, _scaled(numbers, is_inside, stored, is_token, farthest, limit, MAX_4_BITS))
    stored += num_coded * (ROW // HEAD)
    numbers = to_float32(tl.load(pool + found + half_elements, mask=is_inside, other=0), KIND)
    values = signed_codes(numbers, _scaled(numbers, is_inside, stored, is_token, farthest, limit, MAX_4_BITS))
    written = segment + layer * num_tokens * ROW + tokens[:, None] * ROW + elements[None, :]
    tl.store(written, ((keys + OFFSET) | ((values + OFFSET) << 4)).to(tl.uint8), mask=is_inside)


@triton.jit(do_not_specialize=["num_tokens", "num_coded"], do_not_specialize_on_alignment=["scales"])
def decode_8_bits(
    pool,
    slots,
    scales,
    places,
    segment,
    num_tokens,
    num_coded,
    half_elements,
    KIND: tl.constexpr,
    IS_FLOAT: tl.constexpr,
    ROW: tl.constexpr,
    HEAD: tl.constexpr,
    TOKENS: tl.constexpr,
    ELEMENTS: tl.constexpr,
):
    """Grid (blocks of tokens, K's blocks of elements and V's, L): bytes to values in the pool."""
    blocks = tl.num_programs(1) // 2
    which = tl.program_id(1) // blocks
    half = tl.program_id(2).to(tl.int64) * 2 + which
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    elements = tl.program_id(1) % blocks * ELEMENTS + tl.arange(0, ELEMENTS)
    is_token = tokens < num_tokens
    is_inside = is_token[:, None] & (elements < ROW)[None, :]
    read = segment + half * num_tokens * ROW + tokens[:, None] * ROW + elements[None, :]
    codes = tl.load(read, mask=is_inside, other=0).to(tl.int32)
    place = tl.load(places + tokens, mask=is_token, other=0)
    stored = scales + (half * num_coded + place)[:, None] * (ROW // HEAD) + (elements // HEAD)[None, :]
    scale = tl.load(stored, mask=is_inside, other=0.0).to(tl.float32)
    numbers = ((codes ^ 0x80) - 0x80).to(tl.float32) * scale
    if IS_FLOAT:
        numbers = e4m3_values(codes) * scale
    found = places_of(slots, tokens, is_token, elements, half_elements, which, ROW)
    tl.store(pool + found, to_elements(numbers, KIND), mask=is_inside)


@triton.jit(do_not_specialize=["num_tokens", "num_coded"], do_not_specialize_on_alignment=["scales"])
def decode_4_bits(
    pool,
    slots,
    scales,
    places,
    segment,
    num_tokens,
    num_coded,
    half_elements,
    KIND: tl.constexpr,
    ROW: tl.constexpr,
    HEAD: tl.constexpr,
    TOKENS: tl.constexpr,
    ELEMENTS: tl.constexpr,
):
    """Grid (blocks of tokens, blocks of elements, L): nibbles to values of K and V in the pool."""
    layer = tl.program_id(2).to(tl.int64)
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    elements = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    is_token = tokens < num_tokens
    is_inside = is_token[:, None] & (elements < ROW)[None, :]
    read = segment + layer * num_tokens * ROW + tokens[:, None] * ROW + elements[None, :]
    codes = tl.load(read, mask=is_inside, other=0).to(tl.int32)
    place = tl.load(places + tokens, mask=is_token, other=0)
    stored = scales + (layer * 2 * num_coded + place)[:, None] * (ROW // HEAD) + (elements // HEAD)[None, :]
    found = places_of(slots, tokens, is_token, elements, half_elements, 0, ROW)
    scale = tl.load(stored, mask=is_inside, other=0.0).to(tl.float32)
    keys = ((codes & 0x0F) - OFFSET).to(tl.float32) * scale
    tl.store(pool + found, to_elements(keys, KIND), mask=is_inside)
    scale = tl.load(stored + num_coded * (ROW // HEAD), mask=is_inside, other=0.0).to(tl.float32)
    values = ((codes >> 4) - OFFSET).to(tl.float32) * scale
    tl.store(pool + found + half_elements, to_elements(values, KIND), mask=is_inside)
