"""The arithmetic of the symmetric codecs as launches of Triton kernels: one pass over cache and codes each way."""

from __future__ import annotations

import torch

from transfer.codec.fused import launch
from transfer.codec.fused import symmetric_kernels as kernels
from transfer.codec.quantise import require_within
from transfer.codec.symmetric_parts import Coding, Tier


class TritonSymmetric:
    """Kernels over a pool in CUDA memory, or in the host's where Triton interprets them."""

    def encode(self, tier: Tier, limit: float) -> None:
        """As `SymmetricOperations.encode`."""
        farthest = torch.zeros(1, dtype=torch.float32, device=tier.segment.device)
        num_layers, _, num_coded, num_heads, _ = tier.scales.shape
        sizes = (limit, len(tier.places), num_coded, launch.half_elements(tier.rows))
        shape = launch.shape_of(tier.rows, num_heads)
        shape["ELEMENTS"] = launch.whole_head(tier.segment.shape[-1], num_heads)
        tiles = launch.num_tiles(len(tier.places), launch.TILE_TOKENS)
        with launch.on(tier.segment.device):
            if tier.coding is Coding.SIGNED_4:
                kernels.encode_4_bits[tiles, num_heads, num_layers](
                    *_arrays(tier), farthest, *sizes, **shape, **launch.OPTIONS
                )
            else:
                is_float = tier.coding is Coding.FLOAT_8
                kernels.encode_8_bits[tiles, 2 * num_heads, num_layers](
                    *_arrays(tier), farthest, *sizes, IS_FLOAT=is_float, **shape, **launch.OPTIONS
                )
        if limit < torch.inf:
            require_within(-farthest, farthest, limit)

    def decode(self, tier: Tier) -> None:
        """As `SymmetricOperations.decode`."""
        num_layers, _, num_coded, num_heads, _ = tier.scales.shape
        sizes = (len(tier.places), num_coded, launch.half_elements(tier.rows))
        shape = {**launch.shape_of(tier.rows, num_heads), "ELEMENTS": launch.TILE_ELEMENTS}
        tiles = launch.num_tiles(len(tier.places), launch.TILE_TOKENS)
        blocks = launch.num_tiles(tier.segment.shape[-1], launch.TILE_ELEMENTS)
        with launch.on(tier.segment.device):
            if tier.coding is Coding.SIGNED_4:
                kernels.decode_4_bits[tiles, blocks, num_layers](*_arrays(tier), *sizes, **shape, **launch.OPTIONS)
            else:
                is_float = tier.coding is Coding.FLOAT_8
                kernels.decode_8_bits[tiles, 2 * blocks, num_layers](
                    *_arrays(tier), *sizes, IS_FLOAT=is_float, **shape, **launch.OPTIONS
                )


def _arrays(tier: Tier) -> tuple[torch.Tensor, ...]:
    places = launch.int32(tier.places, tier.segment.device)
    return (*launch.pool_of(tier.rows), tier.scales, places, tier.segment)
