"""Pools, tables and identities for the codec's tests."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from protocol.layout import KvDtype, KvLayout
from transfer.arena import Arena
from transfer.codec.chunk import chunk_bytes
from transfer.codec.format import ChunkIdentity
from transfer.codec.native import TORCH_DTYPES

REQUEST_ID = "00112233445566778899aabbccddeeff"
UNTOUCHED = -7.0
LAYOUT = KvLayout("tiny-model", num_layers=2, num_kv_heads=2, head_dim=8, dtype=KvDtype.FLOAT32, block_size=4)


def pool_of(layout: KvLayout, num_blocks: int, seed: int | None, device: str = "cpu") -> torch.Tensor:
    """A pool of random numbers, or of `UNTOUCHED` without a seed."""
    shape = (layout.num_layers, 2, num_blocks, layout.block_size, layout.num_kv_heads, layout.head_dim)
    if seed is None:
        return torch.full(shape, UNTOUCHED, dtype=TORCH_DTYPES[layout.dtype], device=device)
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(TORCH_DTYPES[layout.dtype]).to(device)


def identity_of(
    layout: KvLayout, first_token: int, num_tokens: int, *, dtype: KvDtype | None = None, generation: int = 5
) -> ChunkIdentity:
    """Chunk 3 of a transfer."""
    return ChunkIdentity(
        layout.fingerprint(), REQUEST_ID, generation, 3, first_token, num_tokens, dtype or layout.dtype
    )


def slot_for(layout: KvLayout, identity: ChunkIdentity) -> memoryview:
    """A slot full of old bytes in which the chunk fits."""
    num_bytes = chunk_bytes(layout, identity.wire_dtype, identity.num_tokens)
    slot = Arena(1, -(-num_bytes // 4096) * 4096).slot(0)
    slot[:] = b"\xa5" * len(slot)
    return slot


def tokens_of(pool: torch.Tensor, block_ids: Sequence[int], first_token: int, num_tokens: int) -> torch.Tensor:
    """`[layer, 2, token, kv_head, head_dim]` of one sequence, found token by token: the plain way."""
    block_size = pool.shape[3]
    places = [
        (block_ids[token // block_size], token % block_size) for token in range(first_token, first_token + num_tokens)
    ]
    return torch.stack([pool[:, :, block, slot] for block, slot in places], dim=2)
