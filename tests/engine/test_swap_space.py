"""Host memory for KV: what comes back is what went out, and no room is lost."""

from __future__ import annotations

import pytest
import torch

from engine.kv_cache import KvCache
from engine.swap_space import MOVED_BLOCKS, SwapSpace
from protocol.errors import ConfigError, IllegalMove, KvferryError
from protocol.layout import KvDtype, KvLayout

LAYOUT = KvLayout("tiny", num_layers=3, num_kv_heads=2, head_dim=4, dtype=KvDtype.BFLOAT16, block_size=8)
BLOCK_BYTES = LAYOUT.bytes_per_token * LAYOUT.block_size


def _cache(num_blocks: int = 64) -> KvCache:
    cache = KvCache(LAYOUT, num_blocks, torch.device("cpu"))
    cache.pool.copy_(torch.randn(cache.pool.shape, generator=torch.Generator().manual_seed(0)))
    return cache


def test_what_comes_back_is_what_went_out() -> None:
    """To the bit, into other blocks, over more blocks than are moved at a time and in no order; no other block changes."""
    cache = _cache()
    space = SwapSpace(cache, 40 * BLOCK_BYTES)
    before = cache.pool.clone()
    first = space.out([5, 3])
    gone = list(range(2 * MOVED_BLOCKS + 3, 0, -1))
    assert first is not None
    first.drop()
    other = space.out([1])
    kept = space.out(gone)
    assert other is not None
    assert kept is not None
    assert kept.num_blocks == len(gone)
    other.drop()
    cache.pool[:, :, gone] = 0.0
    target = [one + 20 for one in gone]
    space.back(kept, [*target, 0])
    assert torch.equal(cache.pool[:, :, target], before[:, :, gone])
    untouched = [block for block in range(64) if block not in gone and block not in target]
    assert torch.equal(cache.pool[:, :, untouched], before[:, :, untouched])
    assert space.num_free == space.num_blocks == 40


def test_it_is_bounded() -> None:
    """What does not fit is refused whole, and takes no room."""
    space = SwapSpace(_cache(), 3 * BLOCK_BYTES + 1)
    kept = space.out([1, 2])
    assert kept is not None
    assert space.out([3, 4]) is None
    assert space.num_free == 1
    assert space.out([3]) is not None


def test_room_is_given_back_once() -> None:
    """Neither dropped nor brought back twice; too few blocks change nothing."""
    space = SwapSpace(_cache(), 4 * BLOCK_BYTES)
    kept = space.out([1, 2])
    assert kept is not None
    with pytest.raises(KvferryError):
        space.back(kept, [7])
    assert kept.num_blocks == 2
    space.back(kept, [7, 8])
    with pytest.raises(IllegalMove):
        kept.drop()
    with pytest.raises(IllegalMove):
        space.back(kept, [7, 8])
    assert space.num_free == 4


def test_measuring_changes_nothing() -> None:
    """A rate above 0, and the cache as it was."""
    cache = _cache()
    before = cache.pool.clone()
    space = SwapSpace(cache, 40 * BLOCK_BYTES)
    bytes_per_s, fixed_s = space.measure()
    assert bytes_per_s > 0.0
    assert fixed_s >= 0.0
    assert torch.equal(cache.pool, before)
    assert space.num_free == 40


def test_too_small_a_space_is_refused() -> None:
    """Not even one block fits."""
    with pytest.raises(ConfigError, match="give it more"):
        SwapSpace(_cache(), BLOCK_BYTES - 1)
