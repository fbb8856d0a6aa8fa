"""The codec over pools on a CUDA device."""

from __future__ import annotations

import pytest
import torch

from protocol.layout import KvDtype
from tests.transfer.codec.pools import LAYOUT, UNTOUCHED, identity_of, pool_of, slot_for, tokens_of
from transfer.codec.chunk import pack, unpack
from transfer.codec.native import TORCH_DTYPES
from transfer.codec.pool_view import PoolView

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
    num_bytes = pack(LAYOUT, identity, PoolView(pool, block_ids), on_host)
    assert pack(LAYOUT, identity, PoolView(pool.cuda(), block_ids), on_device) == num_bytes
    assert bytes(on_host[:num_bytes]) == bytes(on_device[:num_bytes])
    target = pool_of(LAYOUT, 8, seed=None, device="cuda")
    unpack(LAYOUT, identity, on_device[:num_bytes], PoolView(target, block_ids))
    found = tokens_of(target.cpu(), block_ids, 3, 9)
    assert torch.equal(found, tokens_of(pool, block_ids, 3, 9).to(TORCH_DTYPES[dtype]).float())
    assert int((target != UNTOUCHED).sum()) == found.numel()
