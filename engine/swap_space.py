"""Host memory for the KV of whole sequences that have lost their blocks. Does not know whose it is, nor when it is worth it.

Bounded; what does not fit is refused. A block of KV is one piece here, so that a sequence is moved in few long copies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from engine.kv_cache import KvCache
from protocol.errors import ConfigError, IllegalMove, KvferryError

MOVED_BLOCKS = 16
"""Blocks that are gathered at a time: what a move takes of the device's memory."""
LEAST_S = 1e-9
"""A move that a clock cannot tell from nothing took so long."""

Clock = Callable[[], float]


class SwappedKv:
    """The KV of some blocks of one sequence, in order. Ends with `SwapSpace.back` or `drop`."""

    def __init__(self, space: SwapSpace, host_ids: list[int]) -> None:
        self._space = space
        self._host_ids: list[int] | None = host_ids

    @property
    def num_blocks(self) -> int:
        """Blocks held; 0 once it has ended."""
        return len(self._host_ids or ())

    def drop(self) -> None:
        """Gives the room back. Raises `IllegalMove` the second time."""
        self._space.give_back(self.take(self._space))

    def take(self, space: SwapSpace) -> list[int]:
        """Ends it: the room is the caller's. Raises `IllegalMove` when it has ended, or lies in another space."""
        if self._host_ids is None or space is not self._space:
            raise IllegalMove("this swapped KV was dropped or brought back already")
        host_ids, self._host_ids = self._host_ids, None
        return host_ids


class SwapSpace:
    """Room for blocks of `cache` in `num_bytes` of host memory, pinned if the cache is on another device.

    Raises `ConfigError` when not even one block fits. On the CPU, memory that is never used costs nothing.
    """

    def __init__(self, cache: KvCache, num_bytes: int) -> None:
        layout = cache.layout
        self.block_bytes = layout.bytes_per_token * layout.block_size
        self.num_blocks = num_bytes // self.block_bytes
        if self.num_blocks < 1:
            raise ConfigError(
                f"one block of the KV cache takes {self.block_bytes} bytes, {num_bytes} are given to swapping: give it more, "
                "or none",
                param="swap_bytes",
            )
        self._pool = cache.pool
        self._is_on_device = cache.pool.device.type == "cuda"
        shape = (layout.num_layers, 2, layout.block_size, layout.num_kv_heads, layout.head_dim)
        self._store = torch.empty((self.num_blocks, *shape), dtype=cache.pool.dtype, pin_memory=self._is_on_device)
        self._free = list(range(self.num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks that `out` can still take."""
        return len(self._free)

    def out(self, block_ids: Sequence[int]) -> SwappedKv | None:
        """Copies these blocks of the cache, all layers; None when there is no room. They may be used again at once."""
        if len(block_ids) > len(self._free):
            return None
        host_ids = [self._free.pop() for _ in block_ids]
        self._copy(block_ids, host_ids, is_out=True)
        return SwappedKv(self, host_ids)

    def back(self, kept: SwappedKv, block_ids: Sequence[int]) -> None:
        """Copies KV into the first of these blocks, in order, and gives its room back. Raises `KvferryError`, and changes
        nothing, if there are too few, and `IllegalMove` if the KV is no longer here.
        """
        if len(block_ids) < kept.num_blocks:
            raise KvferryError(f"{kept.num_blocks} swapped blocks do not fit into {len(block_ids)}")
        host_ids = kept.take(self)
        try:
            self._copy(block_ids[: len(host_ids)], host_ids, is_out=False)
        finally:
            self.give_back(host_ids)

    def give_back(self, host_ids: list[int]) -> None:
        """Frees room that `SwappedKv.take` has handed over."""
        self._free.extend(reversed(host_ids))

    def measure(self, clock: Clock = time.perf_counter) -> tuple[float, float]:
        """Bytes a second one way, and seconds that every move takes besides. Only while nobody uses the cache: its first
        blocks are copied out and written back as they were.
        """
        num_blocks = min(self.num_blocks, self._pool.shape[2], 4 * MOVED_BLOCKS)
        few_s, many_s = (self._round_trip_s(num, clock) / 2 for num in (1, num_blocks))
        if num_blocks == 1 or many_s <= few_s:
            return num_blocks * self.block_bytes / many_s, 0.0
        block_s = (many_s - few_s) / (num_blocks - 1)
        return self.block_bytes / block_s, max(0.0, few_s - block_s)

    def _round_trip_s(self, num_blocks: int, clock: Clock) -> float:
        """The shorter of two: the first one touches memory for the first time."""
        taken: list[float] = []
        for _ in range(2):
            start = clock()
            kept = self.out(range(num_blocks))
            if kept is None:
                raise KvferryError("swap space is measured before it is used")
            self.back(kept, range(num_blocks))
            taken.append(clock() - start)
        return max(LEAST_S, min(taken))

    def _copy(self, block_ids: Sequence[int], host_ids: list[int], *, is_out: bool) -> None:
        with torch.inference_mode():
            for first in range(0, len(host_ids), MOVED_BLOCKS):
                there = torch.tensor(block_ids[first : first + MOVED_BLOCKS], device=self._pool.device)
                here = host_ids[first : first + MOVED_BLOCKS]
                if is_out:
                    self._store_part(self._pool.index_select(2, there).movedim(2, 0).contiguous(), here)
                else:
                    self._pool.index_copy_(2, there, self._part_of(here).movedim(0, 2))
            if self._is_on_device:
                torch.cuda.synchronize(self._pool.device)

    def _store_part(self, part: torch.Tensor, host_ids: list[int]) -> None:
        for row, start, length in _runs(host_ids):
            self._store[start : start + length].copy_(part[row : row + length], non_blocking=self._is_on_device)

    def _part_of(self, host_ids: list[int]) -> torch.Tensor:
        """The stored blocks `[len(host_ids), num_layers, 2, block_size, num_kv_heads, head_dim]`, on the cache's device."""
        part = torch.empty((len(host_ids), *self._store.shape[1:]), dtype=self._pool.dtype, device=self._pool.device)
        for row, start, length in _runs(host_ids):
            part[row : row + length].copy_(self._store[start : start + length], non_blocking=self._is_on_device)
        return part


def _runs(host_ids: list[int]) -> list[tuple[int, int, int]]:
    """Index of the first, its id and the length of each run of neighbours."""
    runs: list[tuple[int, int, int]] = []
    for index, host_id in enumerate(host_ids):
        if runs and host_id == runs[-1][1] + runs[-1][2]:
            row, start, length = runs[-1]
            runs[-1] = (row, start, length + 1)
        else:
            runs.append((index, host_id, 1))
    return runs
