"""Least recently used goes first. The last use of a block is when its last holder let go of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence


class LruPolicy:
    """See `engine.prefix_cache.policy.EvictionPolicy`. Remembers nothing of what went."""

    def __init__(self, _num_blocks: int) -> None:
        self._idle: OrderedDict[bytes, None] = OrderedDict()

    def insert(self, keys: Iterable[bytes]) -> None:
        """Nothing to book: they are held."""

    def touch(self, keys: Iterable[bytes]) -> None:
        """Nothing to book: their use counts when it ends."""

    def hold(self, keys: Sequence[bytes]) -> None:
        """These cannot go now."""
        for key in keys:
            del self._idle[key]

    def let_go(self, keys: Iterable[bytes]) -> None:
        """These are the last to go, in this order."""
        for key in keys:
            self._idle[key] = None

    def victim(self) -> bytes | None:
        """The one that has been idle longest."""
        return next(iter(self._idle), None)

    def evict(self, key: bytes) -> None:
        """It goes, and is forgotten."""
        del self._idle[key]

    def forget(self, key: bytes) -> None:
        """Nothing to book: it was held."""

    def clear(self) -> None:
        """Forgets all there is."""
        self._idle.clear()

    def idle_keys(self) -> set[bytes]:
        """All idle blocks."""
        return set(self._idle)
