"""The arithmetic of the `channel` codec as launches of Triton kernels: what `channel_torch` does, in fewer passes over memory.

Encoding reads K twice, the second time from the GPU's cache, and V once, writes a byte of K's codes and reads it back, writes
the base and a byte of low nibbles, and reads that byte once for each plane (of the tokens that have it). Decoding is a single
pass: it reads base and planes and writes the pool. The reference makes some twenty passes each way, most of them in float32.
"""

from __future__ import annotations

import numpy as np
import torch

from transfer.codec.channel_parts import Coded, Parts
from transfer.codec.fused import channel_kernels as kernels
from transfer.codec.fused import launch
from transfer.codec.quantise import plane_middles, require_within
from transfer.codec.tiers import NUM_PLANES

_PACKED_BYTES = 512
"""Bytes of a plane that one program writes."""


class TritonChannel:
    """Kernels over a pool in CUDA memory, or in the host's where Triton interprets them."""

    def encode(self, coded: Coded, parts: Parts, limit: float) -> None:
        """As `ChannelOperations.encode`."""
        num_layers, num_tokens, row = parts.base.shape
        num_groups, num_heads = parts.keys.minimum.shape[1], parts.values.minimum.shape[2]
        pool, shape = launch.pool_of(coded.rows), launch.shape_of(coded.rows, num_heads)
        refined = torch.empty_like(parts.base)
        farthest = torch.zeros(1, dtype=torch.float32, device=refined.device)
        half = launch.half_elements(coded.rows)
        with launch.on(refined.device):
            kernels.encode_keys[num_groups, launch.num_tiles(row, launch.TILE_ELEMENTS), num_layers](
                *pool, *parts.keys, refined, farthest, limit, num_tokens, num_groups, half,
                **shape, ELEMENTS=launch.TILE_ELEMENTS, **launch.OPTIONS,
            )  # fmt: skip
            kernels.encode_values[launch.num_tiles(num_tokens, launch.TILE_TOKENS), num_heads, num_layers](
                *pool, *parts.values, refined, parts.base, farthest, limit, num_tokens, half,
                **shape, ELEMENTS=launch.whole_head(row, num_heads), **launch.OPTIONS,
            )  # fmt: skip
            _pack(coded, parts, refined)
        if limit < torch.inf:
            require_within(-farthest, farthest, limit)

    def decode(self, coded: Coded, parts: Parts) -> None:
        """As `ChannelOperations.decode`."""
        num_layers, num_tokens, row = parts.base.shape
        num_groups, num_heads = parts.keys.minimum.shape[1], parts.values.minimum.shape[2]
        device = parts.base.device
        having = coded.num_planes >= np.arange(1, NUM_PLANES + 1)[:, None]
        middles = plane_middles(torch.from_numpy(coded.num_planes)).to(device)
        tokens = (launch.int32(having.cumsum(1) - 1, device), launch.int32(coded.num_planes, device), middles)
        lengths = [max(1, plane.shape[1]) for plane in parts.planes]
        sizes = (num_tokens, num_groups, launch.half_elements(coded.rows))
        tiles = (launch.num_tiles(num_tokens, launch.TILE_TOKENS), launch.num_tiles(row, launch.TILE_ELEMENTS))
        with launch.on(device):
            kernels.decode[*tiles, num_layers](
                *launch.pool_of(coded.rows), *parts.keys, *parts.values, parts.base, *parts.planes,
                *lengths, *tokens, *sizes,
                **launch.shape_of(coded.rows, num_heads), ELEMENTS=launch.TILE_ELEMENTS, **launch.OPTIONS,
            )  # fmt: skip


def _pack(coded: Coded, parts: Parts, rest: torch.Tensor) -> None:
    num_layers, num_tokens, row = parts.base.shape
    for plane, packed in enumerate(parts.planes, start=1):
        if packed.numel():
            having = np.flatnonzero(coded.num_planes >= plane)
            length = packed.shape[1]
            kernels.pack_plane[launch.num_tiles(length, _PACKED_BYTES), 1, num_layers](
                rest, launch.int32(having, rest.device), packed,
                NUM_PLANES - plane, num_tokens, len(having) * row, length,
                ROW=row, BYTES=_PACKED_BYTES, **launch.OPTIONS,
            )  # fmt: skip
