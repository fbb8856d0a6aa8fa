"""The `channel` codec: K on a grid per channel and group of tokens, V per token and head, refined by bit planes.

A token's base is its rounded 4-bit code, whatever its tier; each plane halves the error. Which token gets how many planes
is decided elsewhere. `format` has the bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch

from protocol.layout import KvDtype, KvLayout
from protocol.wire_rule import WireCodec
from transfer.codec.bits import join_high_nibbles, join_low_nibbles, pack_plane, split_refined, unpack_plane
from transfer.codec.codec import ChunkPlan
from transfer.codec.payload import (
    Canvas,
    check_exact,
    check_finite,
    check_steps,
    finish,
    read_exact,
    segment_offsets,
    write_exact,
)
from transfer.codec.pool_view import PoolView
from transfer.codec.quantise import (
    MAX_HALF,
    Grid,
    fit_grid,
    lowest_and_highest,
    plane_middles,
    refined_codes,
    refined_values,
    require_within,
)
from transfer.codec.rows import KEY, VALUE, TokenRows, indices, split
from transfer.codec.sizes import GROUP_TOKENS, PayloadSizes, channel_sizes, num_groups, row_elements
from transfer.codec.tiers import NUM_PLANES, TIER_4_BITS, TIER_16_BITS, planes_of_tier


class _Parts(NamedTuple):
    """The payload's arrays. L layers, m coded tokens in g groups, D elements a row, H heads."""

    keys: Grid  # [L, g, 1, D]
    values: Grid  # [L, m, H, 1]
    base: torch.Tensor  # uint8 [L, m, D]
    planes: list[torch.Tensor]  # uint8 [L, ceil(tokens * D / 4)] each


class _Coded(NamedTuple):
    """The tokens that have a base: their places in the pool, and who among them has which plane."""

    rows: TokenRows
    num_planes: torch.Tensor  # int64 [m]
    chosen: list[torch.Tensor | None]  # for each plane: who has it, None when all have


class ChannelCodec:
    """Tiers 1 to 6."""

    code = 1
    name = WireCodec.CHANNEL
    tiers = frozenset(range(TIER_16_BITS, TIER_4_BITS + 1))

    def sizes(self, layout: KvLayout, dtype: KvDtype, counts: Sequence[int]) -> PayloadSizes:
        """As `channel_sizes`: the dtype that crosses does not matter."""
        return channel_sizes(layout, counts)

    def encode(self, plan: ChunkPlan, source: PoolView, payload: memoryview) -> None:
        """Writes scales and segments. Raises `TransferError` for values that are not finite or do not fit."""
        canvas = Canvas(payload, source.pool.device, is_read=False)
        write_exact(plan, source, canvas)
        parts = _parts(plan, canvas)
        if parts.base.numel():
            coded = _coded(plan, source)
            limit = MAX_HALF if plan.identity.wire_dtype is KvDtype.FLOAT16 else torch.inf
            for layers in coded.rows.blocks():
                keys = _encode_keys(coded.rows.read(layers, KEY), _of_layers(parts.keys, layers), limit)
                values = _encode_values(coded.rows.read(layers, VALUE), _of_layers(parts.values, layers), limit)
                parts.base[layers] = join_high_nibbles(keys, values)
                _write_planes(join_low_nibbles(keys, values), coded, [plane[layers] for plane in parts.planes])
        finish(plan, canvas)

    def check(self, plan: ChunkPlan, payload: memoryview) -> None:
        """Raises `BadChunk` for parameters and values that are not finite, and for negative steps."""
        canvas = Canvas(payload, torch.device("cpu"), is_read=True)
        parts = _parts(plan, canvas)
        for grid in (parts.keys, parts.values):
            check_finite("minimum", grid.minimum)
            check_steps("step", grid.step)
        check_exact(plan, canvas)

    def decode(self, plan: ChunkPlan, payload: memoryview, target: PoolView) -> None:
        """Writes all tokens into the pool, each as well as its tier says."""
        canvas = Canvas(payload, target.pool.device, is_read=True)
        coded = _coded(plan, target)
        read_exact(plan, target, canvas)
        parts = _parts(plan, canvas)
        if not parts.base.numel():
            return
        middles = plane_middles(coded.num_planes)[None, :, None]
        for layers in coded.rows.blocks():
            base = parts.base[layers]
            rest = _read_planes(base, coded, [plane[layers] for plane in parts.planes])
            keys, values = split_refined(base, rest)
            coded.rows.write(layers, KEY, _decode_keys(keys, middles, _of_layers(parts.keys, layers)))
            coded.rows.write(layers, VALUE, _decode_values(values, middles, _of_layers(parts.values, layers)))


def _parts(plan: ChunkPlan, canvas: Canvas) -> _Parts:
    layout, sizes = plan.layout, plan.sizes
    num_layers, row, num_heads = layout.num_layers, row_elements(layout), layout.num_kv_heads
    num_coded = int((plan.tiers != TIER_16_BITS).sum())
    per_group = (num_layers, num_groups(num_coded), 1, row)
    per_token = (num_layers, num_coded, num_heads, 1)
    grids, offset = [], sizes.scales_offset
    for shape in (per_group, per_group, per_token, per_token):
        grids.append(canvas.array(offset, torch.float16, shape))
        offset += grids[-1].numel() * torch.float16.itemsize
    _, base, *planes = segment_offsets(plan)
    lengths = [size // num_layers for size in sizes.segment_sizes[2:]]
    return _Parts(
        Grid(grids[0], grids[1]),
        Grid(grids[2], grids[3]),
        canvas.array(base, torch.uint8, (num_layers, num_coded, row)),
        [canvas.array(at, torch.uint8, (num_layers, length)) for at, length in zip(planes, lengths, strict=True)],
    )


def _coded(plan: ChunkPlan, view: PoolView) -> _Coded:
    device = view.pool.device
    positions = np.flatnonzero(plan.tiers != TIER_16_BITS)
    num_planes = planes_of_tier(plan.tiers[positions])
    chosen: list[torch.Tensor | None] = []
    for plane in range(1, NUM_PLANES + 1):
        having = np.flatnonzero(num_planes >= plane)
        chosen.append(None if len(having) == len(positions) else indices(having, device))
    return _Coded(TokenRows(view, plan.identity, positions), indices(num_planes, device), chosen)


def _of_layers(grid: Grid, layers: slice) -> Grid:
    return Grid(grid.minimum[layers], grid.step[layers])


def _groups(num_tokens: int) -> Iterator[tuple[slice, slice]]:
    """Tokens and groups that have equally long groups: those of `GROUP_TOKENS`, then the last one, which has the rest."""
    last = num_groups(num_tokens) - 1
    if last > 0:
        yield slice(0, last * GROUP_TOKENS), slice(0, last)
    yield slice(last * GROUP_TOKENS, num_tokens), slice(last, last + 1)


def _encode_keys(rows: torch.Tensor, stored: Grid, limit: float) -> torch.Tensor:
    parts = [
        (groups, split(rows[:, tokens], 1, groups.stop - groups.start)) for tokens, groups in _groups(rows.shape[1])
    ]
    extremes = [lowest_and_highest(grouped, 2) for _, grouped in parts]
    lowest, highest = (torch.cat(several, 1) for several in zip(*extremes, strict=True))
    grid = _fit(lowest, highest, stored, limit)
    codes = [
        refined_codes(grouped, Grid(grid.minimum[:, groups], grid.step[:, groups])).flatten(1, 2)
        for groups, grouped in parts
    ]
    return torch.cat(codes, 1)


def _encode_values(rows: torch.Tensor, stored: Grid, limit: float) -> torch.Tensor:
    heads = split(rows, 2, stored.minimum.shape[2])
    return refined_codes(heads, _fit(*lowest_and_highest(heads, 3), stored, limit)).flatten(2)


def _fit(lowest: torch.Tensor, highest: torch.Tensor, stored: Grid, limit: float) -> Grid:
    grid = fit_grid(lowest, highest)
    stored.minimum.copy_(grid.minimum)
    stored.step.copy_(grid.step)
    if limit < torch.inf:
        require_within(lowest, highest, limit)
    return grid


def _decode_keys(codes: torch.Tensor, middles: torch.Tensor, grid: Grid) -> torch.Tensor:
    rows = torch.empty(codes.shape, dtype=torch.float32, device=codes.device)
    for tokens, groups in _groups(codes.shape[1]):
        parts = groups.stop - groups.start
        grouped, middle = split(codes[:, tokens], 1, parts), split(middles[:, tokens], 1, parts)
        found = refined_values(grouped, middle, Grid(grid.minimum[:, groups], grid.step[:, groups]))
        rows[:, tokens] = found.flatten(1, 2)
    return rows


def _decode_values(codes: torch.Tensor, middles: torch.Tensor, grid: Grid) -> torch.Tensor:
    heads = split(codes, 2, grid.minimum.shape[2])
    return refined_values(heads, middles.unsqueeze(3), grid).flatten(2)


def _write_planes(rest: torch.Tensor, coded: _Coded, planes: list[torch.Tensor]) -> None:
    for plane, (chosen, packed) in enumerate(zip(coded.chosen, planes, strict=True), start=1):
        if packed.numel():
            rows = rest if chosen is None else rest.index_select(1, chosen)
            packed.copy_(pack_plane(rows.flatten(1), plane))


def _read_planes(base: torch.Tensor, coded: _Coded, planes: list[torch.Tensor]) -> torch.Tensor | None:
    """Joined low nibbles, `[layer, token, element]`; None when no token has a plane."""
    if not planes[0].numel():
        return None
    rest = torch.zeros_like(base)
    row = base.shape[2]
    for plane, (chosen, packed) in enumerate(zip(coded.chosen, planes, strict=True), start=1):
        if chosen is None:
            rest.bitwise_or_(unpack_plane(packed, plane, base.shape[1] * row).view(base.shape))
        elif packed.numel():
            bits = unpack_plane(packed, plane, len(chosen) * row).view(len(base), -1, row)
            rest.index_copy_(1, chosen, rest.index_select(1, chosen).bitwise_or_(bits))
    return rest
