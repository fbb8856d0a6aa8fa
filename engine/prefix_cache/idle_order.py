"""Blocks in the order in which they became idle, for caches from which thousands of blocks are taken at once (ADR 0010)."""

from __future__ import annotations

import numpy as np

from engine.block_pool import BlockIds

MIN_SEARCHED = 256
SEARCHED = 16
"""A search finds the first of so many parts of all idle blocks, so that it comes once in as many choices."""


class IdleOrder:
    """Those of `num_blocks` blocks that are idle, the one that has been so the longest first.

    A block's place is a number that is written down, so that any number of blocks come and go at the cost of an array's
    assignment. What is paid for that is a search for the first ones now and then: all that became idle since come after those
    that it found.
    """

    def __init__(self, num_blocks: int) -> None:
        self._places = np.zeros(num_blocks, np.int64)
        """0 of a block that is not idle."""
        self._next_place = 1
        self._size = 0
        self._first: list[tuple[int, int]] = []
        """Blocks and places as the last search found them, the first one last. Those that have gone since are still there."""

    def __len__(self) -> int:
        return self._size

    def add(self, blocks: BlockIds) -> None:
        """They are the last, in this order."""
        end = self._next_place + len(blocks)
        self._places[blocks] = np.arange(self._next_place, end)
        self._next_place = end
        self._size += len(blocks)

    def remove(self, blocks: BlockIds) -> None:
        """They are not idle any more."""
        self._places[blocks] = 0
        self._size -= len(blocks)

    def remove_one(self, block: int) -> None:
        """As `remove`."""
        self._places[block] = 0
        self._size -= 1

    def first(self) -> int | None:
        """The one that has been idle longest, None if there is none."""
        if not self._size:
            return None
        while True:
            while self._first:
                block, place = self._first[-1]
                if self._places[block] == place:
                    return block
                self._first.pop()
            self._search()

    def clear(self) -> None:
        """None is idle."""
        self._places[:] = 0
        self._size = 0
        self._first.clear()

    def blocks(self) -> set[int]:
        """All of them."""
        return set(np.flatnonzero(self._places).tolist())

    def _search(self) -> None:
        idle = np.flatnonzero(self._places)
        places = self._places[idle]
        num_wanted = max(MIN_SEARCHED, len(idle) // SEARCHED)
        if num_wanted < len(idle):
            chosen = np.argpartition(places, num_wanted)[:num_wanted]
            idle, places = idle[chosen], places[chosen]
        order = np.argsort(places)[::-1]
        self._first = [*zip(idle[order].tolist(), places[order].tolist(), strict=True)]
