"""The codec over pools on a CUDA device."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from protocol.layout import KvDtype
from protocol.wire_rule import WireCodec
from tests.transfer.codec.pools import LAYOUT, UNTOUCHED, cross, identity_of, pool_of, rule_of, slot_for, tokens_of
from transfer.codec.chunk import native_plan, pack, unpack
from transfer.codec.codec import ChunkPlan
from transfer.codec.pool_view import PoolView
from transfer.codec.registry import BY_NAME
from transfer.codec.rows import TORCH_DTYPES

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("dtype", [KvDtype.FLOAT32, KvDtype.BFLOAT16])
def test_a_chunk_of_a_cuda_pool_is_that_of_a_host_pool(dtype: KvDtype) -> None:
    """Packed on the GPU the bytes are the same as on the CPU; unpacked there, the same slots change."""
    identity = identity_of(LAYOUT, 3, 9, dtype=dtype)
    pool, block_ids = pool_of(LAYOUT, 8, seed=1), (5, 1, 2)
    on_host, on_device = slot_for(LAYOUT, identity), slot_for(LAYOUT, identity)
    num_bytes = pack(native_plan(LAYOUT, identity), PoolView(pool, block_ids), on_host)
    assert pack(native_plan(LAYOUT, identity), PoolView(pool.cuda(), block_ids), on_device) == num_bytes
    assert bytes(on_host[:num_bytes]) == bytes(on_device[:num_bytes])
    target = pool_of(LAYOUT, 8, seed=None, device="cuda")
    unpack(LAYOUT, identity, on_device[:num_bytes], PoolView(target, block_ids))
    found = tokens_of(target.cpu(), block_ids, 3, 9)
    assert torch.equal(found, tokens_of(pool, block_ids, 3, 9).to(TORCH_DTYPES[dtype]).float())
    assert int((target != UNTOUCHED).sum()) == found.numel()


@pytest.mark.parametrize("codec", [codec for codec in WireCodec if codec is not WireCodec.NATIVE])
def test_a_lossy_chunk_lands_alike_on_cuda_and_on_the_host(codec: WireCodec) -> None:
    """Packed on the GPU a chunk has the size of the host's and verifies; one chunk lands as the same values on both.

    Codes may differ by one where a quotient lies on the edge of two, so packed bytes are compared by what they mean.
    """
    allowed = sorted(BY_NAME[codec].tiers)
    tiers = np.array([allowed[token % len(allowed)] for token in range(90)], dtype=np.uint8)
    one = cross(LAYOUT, codec, tiers, seed=1)
    plan = ChunkPlan.of(BY_NAME[codec], LAYOUT, one.identity, tiers)
    slot = memoryview(bytearray(plan.sizes.chunk_bytes))
    assert pack(plan, PoolView(one.pool.cuda(), one.block_ids), slot) == len(one.chunk)
    target = pool_of(LAYOUT, one.pool.shape[2], seed=None, device="cuda")
    unpack(LAYOUT, one.identity, slot, PoolView(target, one.block_ids), rule_of(codec))
    found = tokens_of(target.cpu(), one.block_ids, 0, len(tiers))
    assert float((found - one.sent).abs().max()) <= 0.5
    unpack(LAYOUT, one.identity, one.chunk, PoolView(target, one.block_ids), rule_of(codec))
    assert torch.equal(tokens_of(target.cpu(), one.block_ids, 0, len(tiers)), one.landed(rule_of(codec)))
