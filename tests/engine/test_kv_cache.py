"""The KV cache: its shape, its dtype, its size."""

from __future__ import annotations

import pytest
import torch

from engine.kv_cache import KvCache, num_blocks_for_memory, resolve_kv_dtype
from protocol.errors import ConfigError
from protocol.layout import KvDtype, KvLayout

LAYOUT = KvLayout("m", num_layers=3, num_kv_heads=2, head_dim=6, dtype=KvDtype.BFLOAT16, block_size=4)


def test_pool_has_the_shape_and_dtype_of_its_layout() -> None:
    """The pool is `[layer, k|v, block, slot, kv_head, head_dim]` and contiguous."""
    cache = KvCache(LAYOUT, 5, torch.device("cpu"))
    assert cache.pool.shape == (3, 2, 5, 4, 2, 6)
    assert cache.pool.dtype == torch.bfloat16
    assert cache.pool.is_contiguous()


def test_written_tokens_are_where_their_slots_say() -> None:
    """Slot 9 of blocks of 4 is offset 1 of block 2, in the cache's dtype, in its own layer only."""
    cache = KvCache(LAYOUT, 5, torch.device("cpu"))
    cache.pool.zero_()
    key, value = torch.rand(2, 2, 6) + 1, torch.rand(2, 2, 6) + 1
    cache.write(1, torch.tensor([9, 0]), key, value)
    torch.testing.assert_close(cache.pool[1, 0, 2, 1], key[0].bfloat16())
    torch.testing.assert_close(cache.pool[1, 1, 0, 0], value[1].bfloat16())
    torch.testing.assert_close(cache.slots(1)[:, 9], torch.stack((key[0], value[0])).bfloat16())
    assert int((cache.pool != 0).sum()) == 2 * key.numel()


def test_auto_is_the_dtype_computed_in() -> None:
    """`auto` follows the compute dtype, a name stands for itself, and anything else is refused with the choices."""
    assert resolve_kv_dtype("auto", torch.bfloat16) is KvDtype.BFLOAT16
    assert resolve_kv_dtype("auto", torch.float32) is KvDtype.FLOAT32
    assert resolve_kv_dtype("float16", torch.float32) is KvDtype.FLOAT16
    with pytest.raises(ConfigError, match=r"fp8.*float32, float16, bfloat16"):
        resolve_kv_dtype("fp8", torch.float32)


def test_memory_is_counted_in_whole_blocks() -> None:
    """A block of 4 tokens takes 4 * 2 * 3 * 2 * 6 * 2 bytes; what is left over is not used."""
    block_bytes = 4 * 2 * 3 * 2 * 6 * 2
    assert num_blocks_for_memory(LAYOUT, 3 * block_bytes + block_bytes - 1) == 3
    with pytest.raises(ConfigError, match=f"takes {block_bytes} bytes"):
        num_blocks_for_memory(LAYOUT, block_bytes - 1)
    with pytest.raises(ConfigError):
        KvCache(LAYOUT, 0, torch.device("cpu"))
