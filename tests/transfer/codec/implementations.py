"""One chunk through two implementations of a lossy codec: what they write, and what lands."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st

from protocol.layout import KvDtype, KvLayout
from protocol.wire_rule import WireCodec
from tests.transfer.codec.pools import Values, fill, identity_of, pool_of
from transfer.codec.channel import ChannelCodec
from transfer.codec.chunk import pack
from transfer.codec.codec import ChunkPlan, Codec
from transfer.codec.format import HEADER_BYTES
from transfer.codec.operations import Operations
from transfer.codec.pool_view import PoolView
from transfer.codec.registry import BY_NAME
from transfer.codec.symmetric import SymmetricCodec
from transfer.codec.symmetric_parts import Coding
from transfer.codec.tiers import Tiers

LOSSY = [codec for codec in WireCodec if codec is not WireCodec.NATIVE]


@st.composite
def layouts(draw: st.DrawFn) -> KvLayout:
    """Few layers and heads of odd sizes."""
    return KvLayout(
        "model",
        num_layers=draw(st.integers(1, 2)),
        num_kv_heads=draw(st.integers(1, 3)),
        head_dim=draw(st.sampled_from([1, 3, 8, 40])),
        dtype=draw(st.sampled_from(list(KvDtype))),
        block_size=draw(st.sampled_from([1, 4, 16])),
    )


def mixed_tiers(codec: WireCodec, num_tokens: int, seed: int) -> Tiers:
    """Any tiers of a codec in any order."""
    return np.random.default_rng(seed).choice(sorted(BY_NAME[codec].tiers), num_tokens).astype(np.uint8)


def codec_with(name: WireCodec, operations: Operations) -> Codec:
    """A lossy codec that these operations compute."""
    if name is WireCodec.CHANNEL:
        return ChannelCodec(lambda device: operations)
    eight_bits = Coding.FLOAT_8 if name is WireCodec.FP8 else Coding.SIGNED_8
    return SymmetricCodec(BY_NAME[name].code, name, BY_NAME[name].tiers, eight_bits, lambda device: operations)


class Chunk:
    """Tokens of a pool on the CPU, with scattered blocks; implementations take turns at them on any device."""

    def __init__(self, codec: WireCodec, layout: KvLayout, tiers: Tiers, values: Values, seed: int) -> None:
        self.codec, self.layout, self.tiers = codec, layout, tiers
        self.identity = identity_of(layout, seed % 20, len(tiers))
        num_blocks = layout.num_blocks_for(self.identity.first_token + len(tiers))
        self.pool = pool_of(layout, num_blocks + 2, seed)
        fill(self.pool, values, seed)
        order = torch.randperm(num_blocks + 2, generator=torch.Generator().manual_seed(seed))
        self.block_ids = order[:num_blocks].tolist()

    def plan(self, operations: Operations) -> ChunkPlan:
        """The chunk as these operations write it."""
        return ChunkPlan.of(codec_with(self.codec, operations), self.layout, self.identity, self.tiers)

    def packed(self, operations: Operations, device: str = "cpu") -> bytes:
        """The bytes that these operations make of it."""
        plan = self.plan(operations)
        slot = memoryview(bytearray(b"\xa5" * plan.sizes.chunk_bytes))
        pack(plan, PoolView(self.pool.to(device), self.block_ids), slot)
        return bytes(slot)

    def landed(self, operations: Operations, packed: bytes, dtype: KvDtype, device: str = "cpu") -> torch.Tensor:
        """A whole pool of this dtype, on the CPU, after these operations have written a chunk into it."""
        layout = replace(self.layout, dtype=dtype)
        target = pool_of(layout, self.pool.shape[2], seed=None, device=device)
        plan = self.plan(operations)
        plan.codec.decode(plan, memoryview(bytearray(packed))[HEADER_BYTES:], PoolView(target, self.block_ids))
        return target.cpu()
