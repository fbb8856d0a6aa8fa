"""Which cached block follows which: a tree of block ids in lists of integers, without an object a block."""

from __future__ import annotations

NONE = -1


class BlockTree:
    """Blocks out of `num_blocks`, each below its predecessor or at the top. A block's children are in no order that counts."""

    def __init__(self, num_blocks: int) -> None:
        self._parent = [NONE] * num_blocks
        self._first_child = [NONE] * num_blocks
        self._next = [NONE] * num_blocks
        self._previous = [NONE] * num_blocks
        """The siblings of a block. Those at the top have none."""

    def add(self, block: int, parent: int) -> None:
        """Puts a block below another, or at the top: `NONE`."""
        self._parent[block] = parent
        if parent == NONE:
            return
        sibling = self._first_child[parent]
        self._next[block] = sibling
        if sibling != NONE:
            self._previous[sibling] = block
        self._first_child[parent] = block

    def parent(self, block: int) -> int:
        """Its predecessor or `NONE`."""
        return self._parent[block]

    def child(self, block: int) -> int:
        """One of its children or `NONE`."""
        return self._first_child[block]

    def remove_leaf(self, block: int) -> None:
        """Takes a block out that has no children."""
        parent, before, after = self._parent[block], self._previous[block], self._next[block]
        if before != NONE:
            self._next[before] = after
        elif parent != NONE:
            self._first_child[parent] = after
        if after != NONE:
            self._previous[after] = before
        self._parent[block] = self._previous[block] = self._next[block] = NONE

    def children(self, block: int) -> list[int]:
        """All its children: for tests of integrity."""
        found, child = [], self._first_child[block]
        while child != NONE:
            found.append(child)
            child = self._next[child]
        return found

    def clear(self) -> None:
        """Takes all blocks out."""
        for each in (self._parent, self._first_child, self._next, self._previous):
            each[:] = [NONE] * len(each)
