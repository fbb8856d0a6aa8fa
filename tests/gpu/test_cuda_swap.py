"""KV of a cache on a CUDA device, kept in pinned host memory."""

from __future__ import annotations

import pytest
import torch

from engine.kv_cache import KvCache
from engine.swap_space import SwapSpace
from protocol.layout import KvDtype, KvLayout

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
]
LAYOUT = KvLayout("tiny", num_layers=4, num_kv_heads=2, head_dim=64, dtype=KvDtype.BFLOAT16, block_size=16)


def test_what_comes_back_is_what_went_out() -> None:
    """To the bit, into other blocks, with the first ones overwritten at once; the way is measured on the cache itself."""
    cache = KvCache(LAYOUT, 128, torch.device("cuda"))
    cache.pool.normal_(generator=torch.Generator("cuda").manual_seed(0))
    before = cache.pool.cpu()
    space = SwapSpace(cache, 100 * LAYOUT.bytes_per_token * LAYOUT.block_size)
    bytes_per_s, _ = space.measure()
    assert bytes_per_s > 0.0
    assert torch.equal(cache.pool.cpu(), before)
    gone = list(range(50, 0, -1))
    kept = space.out(gone)
    assert kept is not None
    cache.pool[:, :, gone] = 0.0
    target = [one + 60 for one in gone]
    space.back(kept, target)
    assert torch.equal(cache.pool[:, :, target].cpu(), before[:, :, gone])
    assert space.num_free == 100
