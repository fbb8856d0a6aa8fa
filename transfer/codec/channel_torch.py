"""The arithmetic of the `channel` codec in torch, on any device: the reference that other implementations agree with.

A chunk is read and written a few layers at a time, so that on a CPU every intermediate stays in its caches. Knows no bytes
around the arrays.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from transfer.codec.bits import join_high_nibbles, join_low_nibbles, pack_plane, split_refined, unpack_plane
from transfer.codec.channel_parts import Coded, Parts
from transfer.codec.quantise import (
    Grid,
    fit_grid,
    lowest_and_highest,
    plane_middles,
    refined_codes,
    refined_values,
    require_within,
)
from transfer.codec.rows import KEY, VALUE, indices, split
from transfer.codec.sizes import GROUP_TOKENS, num_groups
from transfer.codec.tiers import NUM_PLANES

_Chosen = list[torch.Tensor | None]
"""For each plane who among the coded tokens has it, None when all have."""


class TorchChannel:
    """A call of torch for every step: some twenty passes over the KV each way."""

    def encode(self, coded: Coded, parts: Parts, limit: float) -> None:
        """As `ChannelOperations.encode`."""
        chosen = _chosen(coded)
        for layers in coded.rows.blocks():
            some = parts.of_layers(layers)
            keys = _encode_keys(coded.rows.read(layers, KEY), some.keys, limit)
            values = _encode_values(coded.rows.read(layers, VALUE), some.values, limit)
            some.base.copy_(join_high_nibbles(keys, values))
            _write_planes(join_low_nibbles(keys, values), chosen, some.planes)

    def decode(self, coded: Coded, parts: Parts) -> None:
        """As `ChannelOperations.decode`."""
        chosen = _chosen(coded)
        middles = plane_middles(indices(coded.num_planes, parts.base.device))[None, :, None]
        for layers in coded.rows.blocks():
            some = parts.of_layers(layers)
            keys, values = split_refined(some.base, _read_planes(some.base, chosen, some.planes))
            coded.rows.write(layers, KEY, _decode_keys(keys, middles, some.keys))
            coded.rows.write(layers, VALUE, _decode_values(values, middles, some.values))


def _chosen(coded: Coded) -> _Chosen:
    found: _Chosen = []
    for plane in range(1, NUM_PLANES + 1):
        having = np.flatnonzero(coded.num_planes >= plane)
        found.append(None if len(having) == len(coded.num_planes) else indices(having, coded.rows.slots.device))
    return found


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
    # Zeros lose their signs: of two zeros the lowest and the highest may be either, and a step of -0 counts as negative.
    stored.minimum.copy_(grid.minimum).add_(0.0)
    stored.step.copy_(grid.step).add_(0.0)
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


def _write_planes(rest: torch.Tensor, every: _Chosen, planes: list[torch.Tensor]) -> None:
    for plane, (chosen, packed) in enumerate(zip(every, planes, strict=True), start=1):
        if packed.numel():
            rows = rest if chosen is None else rest.index_select(1, chosen)
            packed.copy_(pack_plane(rows.flatten(1), plane))


def _read_planes(base: torch.Tensor, every: _Chosen, planes: list[torch.Tensor]) -> torch.Tensor | None:
    """Joined low nibbles, `[layer, token, element]`; None when no token has a plane."""
    if not planes[0].numel():
        return None
    rest = torch.zeros_like(base)
    row = base.shape[2]
    for plane, (chosen, packed) in enumerate(zip(every, planes, strict=True), start=1):
        if chosen is None:
            rest.bitwise_or_(unpack_plane(packed, plane, base.shape[1] * row).view(base.shape))
        elif packed.numel():
            bits = unpack_plane(packed, plane, len(chosen) * row).view(len(base), -1, row)
            rest.index_copy_(1, chosen, rest.index_select(1, chosen).bitwise_or_(bits))
    return rest
