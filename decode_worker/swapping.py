"""What becomes of the KV of a preempted sequence: kept in host memory where that is cheaper than computing it again.

Does not know who is preempted, nor when it is resumed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from decode_worker.pacing import Pacing
from decode_worker.sequence import DecodeSequence
from engine.kv_cache import KvCache
from engine.swap_space import SwapSpace
from scheduling.admission import Preemption, SwapPath, cheaper_preemption

log = logging.getLogger(__name__)

SMOOTHING = 0.2
"""What the last move counts in the measured rate."""
LEAST_S = 1e-9


class Swapping:
    """Sets KV aside and brings it back. Without `swap_bytes` nothing is ever set aside."""

    def __init__(self, cache: KvCache, swap_bytes: int, pacing: Pacing, clock: Callable[[], float]) -> None:
        self.num_swaps = 0
        self.num_swap_bytes = 0
        self.path = SwapPath()
        self._block_size = cache.layout.block_size
        self._pacing = pacing
        self._clock = clock
        self._space: SwapSpace | None = None
        if swap_bytes:
            self._space = SwapSpace(cache, swap_bytes)
            self.path = SwapPath(*self._space.measure(clock))
            log.info("swapping: %.2f GB/s and %.1f us a move", self.path.bytes_per_s / 1e9, self.path.fixed_s * 1e6)

    @property
    def num_blocks_held(self) -> int:
        """Blocks of host memory that are in use."""
        return 0 if self._space is None else self._space.num_blocks - self._space.num_free

    def set_aside(self, victim: DecodeSequence) -> bool:
        """Copies a sequence's KV and gives its blocks back; false, and nothing has changed, where computing it again is
        cheaper or there is no room.
        """
        space, num_blocks = self._space, -(-victim.num_cached // self._block_size)
        if space is None or not num_blocks:
            return False
        num_bytes = num_blocks * space.block_bytes
        recompute_s = self._pacing.recompute_s(victim.num_cached)
        if cheaper_preemption(recompute_s, num_bytes, self.path) is not Preemption.SWAP:
            return False
        start = self._clock()
        victim.swapped = space.out(victim.held_table().block_ids[:num_blocks])
        if victim.swapped is None:
            return False
        self._learn(num_bytes, self._clock() - start)
        victim.release_tables()
        self.num_swaps += 1
        self.num_swap_bytes += num_bytes
        return True

    def bring_back(self, sequence: DecodeSequence) -> bool:
        """Fills the new blocks of a sequence with what was set aside; false if nothing was."""
        swapped, space = sequence.swapped, self._space
        if swapped is None or space is None:
            return False
        num_bytes, start = swapped.num_blocks * space.block_bytes, self._clock()
        sequence.swapped = None
        space.back(swapped, sequence.held_table().block_ids)
        self._learn(num_bytes, self._clock() - start)
        self.num_swap_bytes += num_bytes
        return True

    def _learn(self, num_bytes: int, took_s: float) -> None:
        """Moves the rate towards that of the last move."""
        rate = num_bytes / max(LEAST_S, took_s - self.path.fixed_s)
        self.path = replace(self.path, bytes_per_s=self.path.bytes_per_s + SMOOTHING * (rate - self.path.bytes_per_s))
