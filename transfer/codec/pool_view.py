"""One sequence's tokens within a worker's block pool, wherever its blocks lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from protocol.errors import TransferError


@dataclass(frozen=True, slots=True)
class TokenRun:
    """`num_tokens` tokens that lie one after the other: at `slot` of the flat pool and at `offset` of the chunk."""

    slot: int
    offset: int
    num_tokens: int


@dataclass(frozen=True, slots=True, eq=False)
class PoolView:
    """`pool` is `[layer, 2, block, slot, kv_head, head_dim]`, contiguous; `block_ids` is the block table of one sequence."""

    pool: torch.Tensor
    block_ids: Sequence[int]

    @property
    def block_size(self) -> int:
        """Tokens in a block."""
        return int(self.pool.shape[3])

    def flat(self) -> torch.Tensor:
        """The pool as `[layer * 2, block * block_size, kv_head * head_dim]`, the same memory."""
        num_layers, two, num_blocks, block_size, num_heads, head_dim = self.pool.shape
        return self.pool.view(num_layers * two, num_blocks * block_size, num_heads * head_dim)

    def runs(self, first_token: int, num_tokens: int) -> Iterator[TokenRun]:
        """Where tokens `[first_token, first_token + num_tokens)` lie, neighbouring blocks joined.

        Raises `TransferError` when the block table does not cover them or names a block outside the pool.
        """
        self._check_covers(first_token, num_tokens)
        block_ids, block_size = self.block_ids, self.block_size
        start, end = first_token, first_token + num_tokens
        while start < end:
            index = start // block_size
            slot = block_ids[index] * block_size + start % block_size
            stop = min(end, (index + 1) * block_size)
            while stop < end and block_ids[index + 1] == block_ids[index] + 1:
                index += 1
                stop = min(end, (index + 1) * block_size)
            yield TokenRun(slot, start - first_token, stop - start)
            start = stop

    def slots(self, first_token: int, num_tokens: int) -> torch.Tensor:
        """The flat slot of each token: int64 `[num_tokens]` on the pool's device. Raises as `runs` does."""
        self._check_covers(first_token, num_tokens)
        block_size = self.block_size
        first_block = first_token // block_size
        table = np.asarray(self.block_ids[first_block : -(-(first_token + num_tokens) // block_size)], dtype=np.int64)
        every = (table[:, None] * block_size + np.arange(block_size)).ravel()
        start = first_token - first_block * block_size
        slots = torch.from_numpy(every[start : start + num_tokens])
        return slots if self.pool.device.type == "cpu" else slots.to(self.pool.device)

    def _check_covers(self, first_token: int, num_tokens: int) -> None:
        end = first_token + num_tokens
        if first_token < 0 or num_tokens < 1 or end > len(self.block_ids) * self.block_size:
            raise TransferError(f"{len(self.block_ids)} blocks do not cover tokens {first_token} to {end}")
        used = self.block_ids[first_token // self.block_size : -(-end // self.block_size)]
        if min(used) < 0 or max(used) >= self.pool.shape[2]:
            raise TransferError(f"block ids {min(used)} to {max(used)} do not lie in a pool of {self.pool.shape[2]}")
