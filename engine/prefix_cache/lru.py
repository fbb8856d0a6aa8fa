"""Least recently used goes first. The last use of a block is when its last holder let go of it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.block_pool import BlockIds
from engine.prefix_cache.idle_order import IdleOrder


class LruPolicy:
    """See `engine.prefix_cache.policy.EvictionPolicy`. Remembers nothing of what went."""

    def __init__(self, num_blocks: int) -> None:
        self._idle = IdleOrder(num_blocks)

    def insert(self, blocks: BlockIds, names: Sequence[bytes]) -> None:
        """Nothing to book: they are held."""

    def touch(self, blocks: BlockIds) -> None:
        """Nothing to book: their use counts when it ends."""

    def hold(self, blocks: BlockIds) -> None:
        """These cannot go now."""
        self._idle.remove(blocks)

    def let_go(self, blocks: BlockIds) -> None:
        """These are the last to go, in this order."""
        self._idle.add(blocks)

    def victim(self) -> int | None:
        """The one that has been idle longest."""
        return self._idle.first()

    def evict(self, block: int, name: bytes) -> None:
        """It goes, and is forgotten."""
        self._idle.remove_one(block)

    def forget(self, block: int) -> None:
        """Nothing to book: it was held."""

    def clear(self) -> None:
        """Forgets all there is."""
        self._idle.clear()

    def idle_blocks(self) -> set[int]:
        """All idle blocks."""
        return self._idle.blocks()
