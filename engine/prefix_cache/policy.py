"""What a prefix cache asks of a rule of eviction, and the rules by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Protocol

from engine.prefix_cache.arc import ArcPolicy
from engine.prefix_cache.lru import LruPolicy


class PrefixCachePolicy(StrEnum):
    """Rules of eviction."""

    LRU = "lru"
    ARC = "arc"


class EvictionPolicy(Protocol):
    """Chooses among the cached blocks that nobody but the cache holds: the *idle* ones.

    It is told when a block stops and starts being idle, rather than asking about each, so that a choice costs the same however
    many are held. Keys that are named together are told in the order in which they should go: leaves before their parents.
    """

    def insert(self, keys: Iterable[bytes]) -> None:
        """These were cached just now and are held."""
        ...

    def touch(self, keys: Iterable[bytes]) -> None:
        """These cached blocks were found by a prompt, and were held already."""
        ...

    def hold(self, keys: Sequence[bytes]) -> None:
        """These idle blocks were found by a prompt, and are held now."""
        ...

    def let_go(self, keys: Iterable[bytes]) -> None:
        """These held blocks are idle now."""
        ...

    def victim(self) -> bytes | None:
        """The idle block that should go next, None if there is none. Changes nothing."""
        ...

    def evict(self, key: bytes) -> None:
        """An idle block goes."""
        ...

    def forget(self, key: bytes) -> None:
        """A held block is not cached any more. It was not chosen, and nothing is remembered of it."""
        ...

    def clear(self) -> None:
        """Forgets all there is."""
        ...

    def idle_keys(self) -> set[bytes]:
        """All idle blocks: for tests of integrity."""
        ...


POLICIES: Mapping[PrefixCachePolicy, Callable[[int], EvictionPolicy]] = {
    PrefixCachePolicy.LRU: LruPolicy,
    PrefixCachePolicy.ARC: ArcPolicy,
}
"""Each takes the number of blocks that there are."""
