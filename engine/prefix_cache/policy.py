"""What a prefix cache asks of a rule of eviction, and the rules by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from engine.block_pool import BlockIds
from engine.prefix_cache.arc import ArcPolicy
from engine.prefix_cache.lru import LruPolicy


class PrefixCachePolicy(StrEnum):
    """Rules of eviction."""

    LRU = "lru"
    ARC = "arc"


class EvictionPolicy(Protocol):
    """Chooses among the cached blocks that nobody but the cache holds: the *idle* ones.

    It is told when a block stops and starts being idle, rather than asking about each, so that a choice costs the same however
    many are held. Blocks that are let go of together are told in the order in which they should go: leaves before their
    parents. No block is named twice in a call. Names are for those who remember what went: a block is given out again.
    """

    def insert(self, blocks: BlockIds, names: Sequence[bytes]) -> None:
        """These were cached just now and are held."""
        ...

    def touch(self, blocks: BlockIds) -> None:
        """These cached blocks were found by a prompt, and were held already."""
        ...

    def hold(self, blocks: BlockIds) -> None:
        """These idle blocks were found by a prompt, and are held now."""
        ...

    def let_go(self, blocks: BlockIds) -> None:
        """These held blocks are idle now."""
        ...

    def victim(self) -> int | None:
        """The idle block that should go next, None if there is none. Changes nothing."""
        ...

    def evict(self, block: int, name: bytes) -> None:
        """An idle block goes."""
        ...

    def forget(self, block: int) -> None:
        """A held block is not cached any more. It was not chosen, and nothing is remembered of it."""
        ...

    def clear(self) -> None:
        """Forgets all there is."""
        ...

    def idle_blocks(self) -> set[int]:
        """All idle blocks: for tests of integrity."""
        ...


POLICIES: Mapping[PrefixCachePolicy, Callable[[int], EvictionPolicy]] = {
    PrefixCachePolicy.LRU: LruPolicy,
    PrefixCachePolicy.ARC: ArcPolicy,
}
"""Each takes the number of blocks that there are."""
