"""A chunk of the `channel` codec taken apart: its arrays, and its tokens' places in a pool. Knows no arithmetic."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from transfer.codec.codec import ChunkPlan
from transfer.codec.payload import Canvas, segment_offsets
from transfer.codec.pool_view import PoolView
from transfer.codec.quantise import Grid
from transfer.codec.rows import TokenRows
from transfer.codec.sizes import num_groups, row_elements
from transfer.codec.tiers import TIER_16_BITS, planes_of_tier


class Parts(NamedTuple):
    """The payload's arrays, in place. L layers, m coded tokens in g groups, D elements a row, H heads."""

    keys: Grid  # [L, g, 1, D]
    values: Grid  # [L, m, H, 1]
    base: torch.Tensor  # uint8 [L, m, D]
    planes: list[torch.Tensor]  # uint8 [L, ceil(tokens * D / 4)] each

    def of_layers(self, layers: slice) -> Parts:
        """The same of some layers."""
        keys, values = (Grid(grid.minimum[layers], grid.step[layers]) for grid in (self.keys, self.values))
        return Parts(keys, values, self.base[layers], [plane[layers] for plane in self.planes])


class Coded(NamedTuple):
    """The tokens that have a base: their places in the pool, and how many planes follow it."""

    rows: TokenRows
    num_planes: npt.NDArray[np.int64]  # [m], 0 to 4


class ChannelOperations(Protocol):
    """What the codec computes, over all layers of a chunk that has at least one coded token."""

    def encode(self, coded: Coded, parts: Parts, limit: float) -> None:
        """Fills all parts from the pool. Values that are not finite leave a grid that is not.

        Raises `TransferError` when a value is beyond a finite `limit`, or is no number.
        """
        ...

    def decode(self, coded: Coded, parts: Parts) -> None:
        """Writes the tokens into the pool, each with the planes that it has."""
        ...


def parts_of(plan: ChunkPlan, canvas: Canvas) -> Parts:
    """Where the plan's arrays lie in a payload."""
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
    return Parts(
        Grid(grids[0], grids[1]),
        Grid(grids[2], grids[3]),
        canvas.array(base, torch.uint8, (num_layers, num_coded, row)),
        [canvas.array(at, torch.uint8, (num_layers, length)) for at, length in zip(planes, lengths, strict=True)],
    )


def coded_tokens(plan: ChunkPlan, view: PoolView) -> Coded:
    """The plan's tokens that are not at tier 1. Raises `TransferError` for a table that does not cover the chunk."""
    positions = np.flatnonzero(plan.tiers != TIER_16_BITS)
    return Coded(TokenRows(view, plan.identity, positions), planes_of_tier(plan.tiers[positions]))
