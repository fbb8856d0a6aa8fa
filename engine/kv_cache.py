"""The paged KV cache: one tensor. Knows nothing of which sequence owns which block."""

from __future__ import annotations

import torch

from protocol.errors import ConfigError
from protocol.layout import KvDtype, KvLayout

TORCH_DTYPES = {
    KvDtype.FLOAT32: torch.float32,
    KvDtype.FLOAT16: torch.float16,
    KvDtype.BFLOAT16: torch.bfloat16,
}


class KvCache:
    """`pool`: `[num_layers, 2, num_blocks, block_size, num_kv_heads, head_dim]` of `layout.dtype`; 0 is K, 1 is V.

    On the CPU memory is reserved and not touched, so that blocks which are never written cost nothing. Readers must
    therefore never let a slot that was not written into their arithmetic, not even with weight 0. On other devices the
    pool starts as zeros.
    """

    def __init__(self, layout: KvLayout, num_blocks: int, device: torch.device) -> None:
        if num_blocks < 1:
            raise ConfigError(f"a KV cache needs at least one block, got {num_blocks}")
        self.layout = layout
        self.num_blocks = num_blocks
        shape = (layout.num_layers, 2, num_blocks, layout.block_size, layout.num_kv_heads, layout.head_dim)
        make = torch.empty if device.type == "cpu" else torch.zeros
        self.pool = make(shape, dtype=TORCH_DTYPES[layout.dtype], device=device)
        self._slots: list[torch.Tensor] = [layer.flatten(1, 2) for layer in self.pool]

    def slots(self, layer: int) -> torch.Tensor:
        """A view `[2, num_blocks * block_size, num_kv_heads, head_dim]`; slot = block * block_size + offset."""
        return self._slots[layer]

    def write(self, layer: int, slots: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Stores `key` and `value` `[T, num_kv_heads, head_dim]` at `slots` (int64 `[T]`), in the cache's dtype."""
        target = self._slots[layer]
        target[0].index_copy_(0, slots, key.to(target.dtype))
        target[1].index_copy_(0, slots, value.to(target.dtype))

    def copy_block(self, source: int, target: int) -> None:
        """Makes K and V of block `target` those of block `source` in all layers, slots that were never written included."""
        self.pool[:, :, target].copy_(self.pool[:, :, source])


def resolve_kv_dtype(name: str, compute_dtype: torch.dtype) -> KvDtype:
    """The cache's dtype for `auto` (the one computed in) or a name. Raises `ConfigError` for any other."""
    wanted = str(compute_dtype).removeprefix("torch.") if name == "auto" else name
    if wanted not in set(KvDtype):
        raise ConfigError(f"KV dtype {wanted!r} is not supported; use auto, {', '.join(KvDtype)}", param="kv_dtype")
    return KvDtype(wanted)


def num_blocks_for_memory(layout: KvLayout, num_bytes: int) -> int:
    """Blocks that fit into `num_bytes`. Raises `ConfigError` when not even one does."""
    block_bytes = layout.bytes_per_token * layout.block_size
    if num_bytes < block_bytes:
        raise ConfigError(
            f"one block of the KV cache takes {block_bytes} bytes, {num_bytes} are given to all of it: give it more",
            param="kv_cache_bytes",
        )
    return num_bytes // block_bytes
