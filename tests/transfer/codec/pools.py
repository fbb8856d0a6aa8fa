"""Pools, tables and identities for the codec's tests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import torch

from protocol.layout import KvDtype, KvLayout
from protocol.wire_rule import Importance, WireCodec, WireRule
from transfer.arena import Arena
from transfer.codec.chunk import chunk_bytes, pack, unpack
from transfer.codec.codec import ChunkPlan
from transfer.codec.format import ChunkIdentity
from transfer.codec.pool_view import PoolView
from transfer.codec.registry import BY_NAME
from transfer.codec.rows import TORCH_DTYPES
from transfer.codec.tiers import Tiers

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


class Values(StrEnum):
    """Kinds of numbers that a cache may hold."""

    NORMAL = "normal"
    OUTLIERS = "outliers"
    CONSTANT = "constant"
    HUGE = "huge"
    TINY = "tiny"
    ZERO = "zero"


def fill(pool: torch.Tensor, kind: Values, seed: int) -> None:
    """Overwrites a pool with numbers of one kind."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(pool.shape, generator=generator)
    if kind is Values.OUTLIERS:
        numbers[..., 0] = numbers[..., 0] * 0.5 + 300
    elif kind is Values.CONSTANT:
        numbers = torch.full_like(numbers, 100.03)
    elif kind is Values.HUGE:
        numbers = numbers.mul_(2e4).clamp_(-6e4, 6e4)
    elif kind is Values.TINY:
        numbers *= 1e-7
    elif kind is Values.ZERO:
        numbers.zero_()
    pool.copy_(numbers)


def rule_of(codec: WireCodec, budget: float = 1.0, **changes: Any) -> WireRule:
    """A rule whose importance needs nothing."""
    return replace(WireRule(codec, budget, Importance.POSITIONAL, num_sinks=0), **changes)


@dataclass(frozen=True, slots=True, eq=False)
class Crossing:
    """A pool, and a chunk packed from its tokens `[first, first + len(tiers))`."""

    layout: KvLayout
    identity: ChunkIdentity
    pool: torch.Tensor
    block_ids: list[int]
    chunk: memoryview

    @property
    def sent(self) -> torch.Tensor:
        """What the chunk was made from, `[layer, k|v, token, head, dim]`, float32."""
        one = self.identity
        return tokens_of(self.pool, self.block_ids, one.first_token, one.num_tokens).float()

    def landed(self, rule: WireRule, dtype: KvDtype | None = None) -> torch.Tensor:
        """The tokens after they were unpacked into another pool."""
        one, layout = self.identity, replace(self.layout, dtype=dtype or self.layout.dtype, block_size=3)
        num_blocks = layout.num_blocks_for(one.first_token + one.num_tokens)
        target, ids = pool_of(layout, num_blocks + 1, None), list(range(num_blocks, 0, -1))
        unpack(layout, one, self.chunk, PoolView(target, ids), rule)
        found = tokens_of(target, ids, one.first_token, one.num_tokens)
        num_written = int((target != UNTOUCHED).sum())
        assert num_written == int((found != UNTOUCHED).sum()), "a slot of another token was written"
        return found


def cross(
    layout: KvLayout, codec: WireCodec, tiers: Tiers, values: Values = Values.NORMAL, *, seed: int = 0, first: int = 0
) -> Crossing:
    """Packs a chunk with these tiers from a pool of such values; it crosses in the cache's own dtype."""
    end = first + len(tiers)
    identity = identity_of(layout, first, len(tiers))
    num_blocks = layout.num_blocks_for(end)
    pool = pool_of(layout, num_blocks + 2, seed)
    fill(pool, values, seed)
    block_ids = torch.randperm(num_blocks + 2, generator=torch.Generator().manual_seed(seed))[:num_blocks].tolist()
    plan = ChunkPlan.of(BY_NAME[codec], layout, identity, tiers)
    slot = memoryview(bytearray(b"\xa5" * plan.sizes.chunk_bytes))
    return Crossing(layout, identity, pool, block_ids, slot[: pack(plan, PoolView(pool, block_ids), slot)])
