"""Chosen tokens of a chunk as float32 rows of a pool, a few layers at a time, and back. Knows pools, not codes or bytes.

On a CPU as many layers go at once as keep every intermediate in its caches; on a GPU all do, in few kernels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from protocol.layout import KvDtype
from transfer.codec.format import ChunkIdentity
from transfer.codec.pool_view import PoolView

KEY, VALUE = 0, 1
_CACHED_ELEMENTS = 300_000

TORCH_DTYPES = {
    KvDtype.FLOAT32: torch.float32,
    KvDtype.FLOAT16: torch.float16,
    KvDtype.BFLOAT16: torch.bfloat16,
}


class TokenRows:
    """The tokens `chosen` (positions in the chunk, ascending) of the chunk that `identity` names.

    `flat` is the pool as `[layer, k|v, slot, kv_head * head_dim]`, the same memory, and `slots` where in it the tokens lie:
    int64 `[token]` on the pool's device.
    """

    def __init__(self, view: PoolView, identity: ChunkIdentity, chosen: npt.NDArray[np.int64]) -> None:
        num_layers, two, num_blocks, block_size, num_heads, head_dim = view.pool.shape
        self.flat = view.pool.view(num_layers, two, num_blocks * block_size, num_heads * head_dim)
        slots = view.slots(identity.first_token, identity.num_tokens)
        self.slots = slots[indices(chosen, slots.device)] if len(chosen) < len(slots) else slots

    def blocks(self) -> Iterator[slice]:
        """Layers that are read or written together; each layer once."""
        num_layers, _, _, row = self.flat.shape
        wanted = _CACHED_ELEMENTS // max(1, len(self.slots) * row)
        at_once = max(1, min(num_layers, wanted)) if self.flat.device.type == "cpu" else num_layers
        return (slice(first, first + at_once) for first in range(0, num_layers, at_once))

    def read(self, layers: slice, which: int) -> torch.Tensor:
        """K or V of some layers, a copy: float32 `[layer, token, kv_head * head_dim]`."""
        # Not `index_select`: it copies all of a pool's slots first, since those of several layers do not lie together.
        return self.flat[layers, which][:, self.slots].float()

    def write(self, layers: slice, which: int, rows: torch.Tensor) -> None:
        """Puts float32 rows (overwritten) into the pool. What a float16 cache cannot hold becomes its largest number.

        A code may stand for a little more than the largest value that it was made from.
        """
        if self.flat.dtype == torch.float16:
            limit = torch.finfo(torch.float16).max
            rows.clamp_(-limit, limit)
        self.flat[layers, which].index_copy_(1, self.slots, rows.to(self.flat.dtype))


def indices(positions: npt.NDArray[np.int64], device: torch.device) -> torch.Tensor:
    """Positions as torch takes them."""
    return torch.from_numpy(positions).to(device)


def split(rows: torch.Tensor, dim: int, num_parts: int) -> torch.Tensor:
    """One dimension as two, the first of which has `num_parts`: the same memory."""
    shape = rows.shape
    return rows.view(*shape[:dim], num_parts, shape[dim] // num_parts, *shape[dim + 1 :])
