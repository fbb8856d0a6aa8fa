"""Triton kernels of the `channel` codec. Arrays are contiguous; shapes are those of `channel_parts.Parts`.

Launched over layers in the last axis of the grid. L layers, m coded tokens, g groups, H heads, D elements a row. A token's
elements lie at `slots[token] * D` of its layer's K or V, which are `half_elements` long each. Kernels have as many arguments
as they have arrays: Triton compiles scalars and pointers, not records.

Within a layer offsets are 32 bits wide, across layers and in the pool 64.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from transfer.codec.fused.numbers import (
    fit_minimum,
    fit_step,
    refined_codes,
    refined_values,
    to_elements,
    to_float32,
)
from transfer.codec.fused.pool import note_beyond, places_of

GROUP_TOKENS = tl.constexpr(64)


@triton.jit(do_not_specialize=["num_tokens", "num_groups"], do_not_specialize_on_alignment=["minima", "steps"])
def encode_keys(
    pool,
    slots,
    minima,
    steps,
    refined,
    farthest,
    limit,
    num_tokens,
    num_groups,
    half_elements,
    KIND: tl.constexpr,
    ROW: tl.constexpr,
    HEAD: tl.constexpr,
    TOKENS: tl.constexpr,
    ELEMENTS: tl.constexpr,
):
    """Grid (g, blocks of channels, L): K's grids, and refined codes `[L, m, D]`. A group is read twice, a tile at a time."""
    group, layer = tl.program_id(0), tl.program_id(2).to(tl.int64)
    channels = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    first = group * GROUP_TOKENS
    end = tl.where(group == num_groups - 1, num_tokens, first + GROUP_TOKENS)
    lowest = tl.full([ELEMENTS], float("inf"), tl.float32)
    highest = tl.full([ELEMENTS], float("-inf"), tl.float32)
    for start in range(first, end, TOKENS):
        tokens = start + tl.arange(0, TOKENS)
        is_inside = (tokens < end)[:, None] & (channels < ROW)[None, :]
        places = places_of(slots, tokens, tokens < end, channels, half_elements, 0, ROW)
        numbers = to_float32(tl.load(pool + places, mask=is_inside, other=0), KIND)
        lowest = tl.minimum(lowest, tl.min(tl.where(is_inside, numbers, float("inf")), axis=0))
        highest = tl.maximum(highest, tl.max(tl.where(is_inside, numbers, float("-inf")), axis=0))
    lowest = tl.where(channels < ROW, lowest, 0.0)
    highest = tl.where(channels < ROW, highest, 0.0)
    note_beyond(farthest, lowest, highest, limit)
    minimum = fit_minimum(lowest)
    step = fit_step(minimum, highest)
    grids = (layer * num_groups + group) * ROW + channels
    tl.store(minima + grids, minimum, mask=channels < ROW)
    tl.store(steps + grids, step, mask=channels < ROW)
    for start in range(first, end, TOKENS):
        tokens = start + tl.arange(0, TOKENS)
        is_inside = (tokens < end)[:, None] & (channels < ROW)[None, :]
        places = places_of(slots, tokens, tokens < end, channels, half_elements, 0, ROW)
        numbers = to_float32(tl.load(pool + places, mask=is_inside, other=0), KIND)
        codes = refined_codes(numbers, minimum[None, :], step[None, :])
        found = refined + layer * num_tokens * ROW + tokens[:, None] * ROW + channels[None, :]
        tl.store(found, codes.to(tl.uint8), mask=is_inside)


@triton.jit(do_not_specialize=["num_tokens"], do_not_specialize_on_alignment=["minima", "steps"])
def encode_values(
    pool,
    slots,
    minima,
    steps,
    refined,
    base,
    farthest,
    limit,
    num_tokens,
    half_elements,
    KIND: tl.constexpr,
    ROW: tl.constexpr,
    HEAD: tl.constexpr,
    TOKENS: tl.constexpr,
    ELEMENTS: tl.constexpr,
):
    """Grid (blocks of tokens, H, L): V's grids; the base from both codes; their low nibbles joined, in place of K's codes."""
    head, layer = tl.program_id(1), tl.program_id(2).to(tl.int64)
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    within = tl.arange(0, ELEMENTS)
    is_inside = (tokens < num_tokens)[:, None] & (within < HEAD)[None, :]
    places = places_of(slots, tokens, tokens < num_tokens, head * HEAD + within, half_elements, 1, ROW)
    numbers = to_float32(tl.load(pool + places, mask=is_inside, other=0), KIND)
    lowest = tl.min(tl.where(is_inside, numbers, float("inf")), axis=1)
    highest = tl.max(tl.where(is_inside, numbers, float("-inf")), axis=1)
    lowest = tl.where(tokens < num_tokens, lowest, 0.0)
    highest = tl.where(tokens < num_tokens, highest, 0.0)
    note_beyond(farthest, lowest, highest, limit)
    minimum = fit_minimum(lowest)
    step = fit_step(minimum, highest)
    grids = (layer * num_tokens + tokens) * (ROW // HEAD) + head
    tl.store(minima + grids, minimum, mask=tokens < num_tokens)
    tl.store(steps + grids, step, mask=tokens < num_tokens)
    values = refined_codes(numbers, minimum[:, None], step[:, None])
    codes = layer * num_tokens * ROW + tokens[:, None] * ROW + (head * HEAD + within)[None, :]
    keys = tl.load(refined + codes, mask=is_inside, other=0).to(tl.int32)
    tl.store(base + codes, ((keys >> 4) | (values & 0xF0)).to(tl.uint8), mask=is_inside)
    tl.store(refined + codes, ((keys & 0x0F) | ((values & 0x0F) << 4)).to(tl.uint8), mask=is_inside)


@triton.jit(do_not_specialize=["shift", "num_tokens", "num_elements", "length"])
def pack_plane(
    rest,
    chosen,
    packed,
    shift,
    num_tokens,
    num_elements,
    length,
    ROW: tl.constexpr,
    BYTES: tl.constexpr,
):
    """Grid (blocks of bytes, 1, L): the plane at bit `shift` of joined low nibbles, of the tokens `chosen` (int32)."""
    layer = tl.program_id(2).to(tl.int64)
    places = tl.program_id(0) * BYTES + tl.arange(0, BYTES)
    joined = tl.zeros([BYTES], tl.int32)
    for part in tl.static_range(4):
        elements = part * length + places
        is_inside = (places < length) & (elements < num_elements)
        tokens = tl.load(chosen + elements // ROW, mask=is_inside, other=0)
        nibbles = tl.load(rest + layer * num_tokens * ROW + tokens * ROW + elements % ROW, mask=is_inside, other=0)
        joined |= ((nibbles.to(tl.int32) >> shift) & 0x11) << part
    tl.store(packed + layer * length + places, joined.to(tl.uint8), mask=places < length)


@triton.jit
def _plane_bits(packed, length, ranks, num_planes, tokens, elements, is_inside, PLANE: tl.constexpr, ROW: tl.constexpr):
    """int32: one plane's bits of a tile where joined low nibbles have them; zero for tokens without the plane."""
    has_plane = num_planes >= PLANE
    rows = tl.load(ranks + tokens, mask=has_plane, other=0) * ROW
    places = rows[:, None] + elements[None, :]
    part = places // length
    bits = packed + tl.program_id(2).to(tl.int64) * length + places % length
    found = tl.load(bits, mask=is_inside & has_plane[:, None], other=0)
    return ((found.to(tl.int32) >> part) & 0x11) << (4 - PLANE)


@triton.jit(
    do_not_specialize=["num_tokens", "num_groups", "length_1", "length_2", "length_3", "length_4"],
    do_not_specialize_on_alignment=["key_minima", "key_steps", "value_minima", "value_steps", "ranks"],
)
def decode(
    pool,
    slots,
    key_minima,
    key_steps,
    value_minima,
    value_steps,
    base,
    plane_1,
    plane_2,
    plane_3,
    plane_4,
    length_1,
    length_2,
    length_3,
    length_4,
    ranks,
    num_planes,
    middles,
    num_tokens,
    num_groups,
    half_elements,
    KIND: tl.constexpr,
    ROW: tl.constexpr,
    HEAD: tl.constexpr,
    TOKENS: tl.constexpr,
    ELEMENTS: tl.constexpr,
):
    """Grid (blocks of tokens, blocks of elements, L): base and planes to values in the pool.

    `ranks` is int32 `[4, m]`, which of the tokens that have the plane this one is; `middles` float32 `[m]` is what
    `quantise.plane_middles` has. A plane that nobody has has length 1 and is never read.
    """
    layer = tl.program_id(2).to(tl.int64)
    tokens = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    elements = tl.program_id(1) * ELEMENTS + tl.arange(0, ELEMENTS)
    is_token = tokens < num_tokens
    is_inside = is_token[:, None] & (elements < ROW)[None, :]
    joined = tl.load(
        base + layer * num_tokens * ROW + tokens[:, None] * ROW + elements[None, :], mask=is_inside, other=0
    ).to(tl.int32)
    planes = tl.load(num_planes + tokens, mask=is_token, other=0)
    rest = _plane_bits(plane_1, length_1, ranks, planes, tokens, elements, is_inside, 1, ROW)
    rest |= _plane_bits(plane_2, length_2, ranks + num_tokens, planes, tokens, elements, is_inside, 2, ROW)
    rest |= _plane_bits(plane_3, length_3, ranks + 2 * num_tokens, planes, tokens, elements, is_inside, 3, ROW)
    rest |= _plane_bits(plane_4, length_4, ranks + 3 * num_tokens, planes, tokens, elements, is_inside, 4, ROW)
    middle = tl.load(middles + tokens, mask=is_token, other=0.0)[:, None]
    groups = tl.minimum(tokens // GROUP_TOKENS, num_groups - 1)
    grids = (layer * num_groups + groups)[:, None] * ROW + elements[None, :]
    minimum = tl.load(key_minima + grids, mask=is_inside, other=0.0)
    step = tl.load(key_steps + grids, mask=is_inside, other=0.0)
    keys = refined_values(((joined & 0x0F) << 4) | (rest & 0x0F), middle, minimum, step)
    places = places_of(slots, tokens, is_token, elements, half_elements, 0, ROW)
    tl.store(pool + places, to_elements(keys, KIND), mask=is_inside)
    grids = (layer * num_tokens + tokens)[:, None] * (ROW // HEAD) + (elements // HEAD)[None, :]
    minimum = tl.load(value_minima + grids, mask=is_inside, other=0.0)
    step = tl.load(value_steps + grids, mask=is_inside, other=0.0)
    values = refined_values((joined & 0xF0) | (rest >> 4), middle, minimum, step)
    tl.store(pool + places + half_elements, to_elements(values, KIND), mask=is_inside)
