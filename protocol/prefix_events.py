"""What a worker tells of its prefix cache, so that a router knows which prompts would find their beginning there.

Events are numbered without gaps from 0. Whoever misses one takes a snapshot, which says the number that follows it. Blocks
are known by the names of `protocol.prefix`. A cached block's predecessor is cached too, always: it is stored first and
evicted last.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlocksStored:
    """These blocks can be found now. The first follows `parent`, None where a prompt begins, each other the one before."""

    parent: bytes | None
    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class BlocksEvicted:
    """These blocks cannot be found any more."""

    hashes: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class CacheCleared:
    """Nothing can be found any more."""


PrefixEvent = BlocksStored | BlocksEvicted | CacheCleared


@dataclass(frozen=True, slots=True)
class EventBatch:
    """Events in order, numbered from `first_number` on."""

    first_number: int
    events: tuple[PrefixEvent, ...]

    @property
    def next_number(self) -> int:
        """The number of the event that follows the batch."""
        return self.first_number + len(self.events)


@dataclass(frozen=True, slots=True)
class PrefixSnapshot:
    """All blocks that can be found, each behind its predecessor, before event `next_number` happens."""

    next_number: int
    hashes: tuple[bytes, ...]
