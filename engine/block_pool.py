"""Who holds which blocks of the KV cache: integers only. Knows nothing of tensors or of what the blocks contain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from protocol.errors import ConfigError, IllegalMove, KvferryError, OutOfBlocks

BlockIds: TypeAlias = npt.NDArray[np.intp]
"""Ids of blocks. Long prompts have thousands, which are counted together, without a loop in Python."""


class Keeper(Protocol):
    """Who is one of the holders of some blocks, its *kept* ones, only until there is need of room: a prefix cache."""

    def on_held(self, block_ids: BlockIds) -> None:
        """These kept blocks have another holder again."""
        ...

    def on_left(self, block_ids: BlockIds) -> None:
        """The last other holder of these kept blocks has left, in the order in which it named them."""
        ...

    def make_room(self, num_blocks: int) -> None:
        """Calls `unkeep` for that many kept blocks without another holder, of which there are enough."""
        ...


class BlockPool:
    """Blocks `0 .. num_blocks - 1`, each with a count of its holders. A block without holders is empty.

    One that only the keeper holds is free all the same: it is given out when no empty one is left. Hands out neighbours where
    it can: a sequence whose blocks follow each other in memory is attended to without a copy.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ConfigError(f"a block pool needs at least one block, got {num_blocks}")
        self.num_blocks = num_blocks
        self._holders = np.zeros(num_blocks, np.int32)
        self._is_kept = np.zeros(num_blocks, np.bool_)
        self._place = np.zeros(num_blocks, np.intp)
        """Where in a call a block was named last: tells whether it was named twice."""
        self._num_empty = num_blocks
        self._num_kept_idle = 0
        self._keeper: Keeper | None = None

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out now."""
        return self._num_empty + self._num_kept_idle

    @property
    def num_kept_idle(self) -> int:
        """Those of the free blocks that the keeper would have to give up."""
        return self._num_kept_idle

    def set_keeper(self, keeper: Keeper) -> None:
        """Says who may keep blocks. Raises `IllegalMove` if somebody does."""
        if self._keeper is not None:
            raise IllegalMove("the block pool has a keeper already")
        self._keeper = keeper

    def allocate(self, num_blocks: int, *, after: int | None = None) -> list[int]:
        """Takes free blocks, each with one holder. Raises `OutOfBlocks`, and takes none, if there are fewer.

        Those that follow block `after` come first; the others lie in the middle of the longest empty run, so that whoever
        holds the blocks before it can still grow.
        """
        if num_blocks < 0:
            raise ConfigError(f"cannot allocate {num_blocks} blocks")
        if not num_blocks:
            return []
        if num_blocks > self.num_free:
            raise OutOfBlocks(f"{num_blocks} blocks are needed and {self.num_free} of {self.num_blocks} are free")
        if num_blocks > self._num_empty and self._keeper is not None:
            self._keeper.make_room(num_blocks - self._num_empty)
        taken: list[int] = []
        if after is not None:
            self._take(after + 1, self._num_empty_from(after + 1, num_blocks), taken)
        if len(taken) < num_blocks:
            for start, length in self._empty_runs():
                num_wanted = num_blocks - len(taken)
                first = _start_in(start, length, num_wanted)
                self._take(first, min(num_wanted, start + length - first), taken)
                if len(taken) == num_blocks:
                    break
        self._num_empty -= num_blocks
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Adds a holder to each block. Raises `IllegalMove`, and changes nothing, if one of them is empty or unknown, or named
        twice.
        """
        self.hold_kept(self._checked(block_ids))

    def hold_kept(self, blocks: BlockIds) -> int:
        """As `share`, for the keeper's own blocks, which are not looked at again: how many of them nobody else held."""
        reheld = self._only_kept(blocks)
        self._holders[blocks] += 1
        self._num_kept_idle -= len(reheld)
        if len(reheld) and self._keeper is not None:
            self._keeper.on_held(reheld)
        return len(reheld)

    def release(self, block_ids: Iterable[int]) -> None:
        """Takes a holder from each block. Raises `IllegalMove`, and changes nothing, if one of them has none but the keeper."""
        blocks = self._checked(block_ids)
        only_kept = self._only_kept(blocks)
        if len(only_kept):
            raise IllegalMove(f"block {only_kept[0]} is only kept, not held by anyone")
        self._leave(blocks)
        left = self._only_kept(blocks)
        self._num_kept_idle += len(left)
        if len(left) and self._keeper is not None:
            self._keeper.on_left(left)

    def keep(self, block_ids: Sequence[int]) -> None:
        """Makes the keeper a holder of each block. Raises `IllegalMove`, and changes nothing, if nobody holds one, or the
        keeper does.
        """
        blocks = self._checked(block_ids)
        if self._is_kept[blocks].any():
            raise IllegalMove("a block is kept already")
        self._is_kept[blocks] = True
        self._holders[blocks] += 1

    def unkeep(self, block_ids: Sequence[int]) -> None:
        """The keeper is a holder no longer. Raises `IllegalMove`, and changes nothing, for a block that it does not keep."""
        blocks = self._checked(block_ids)
        if not self._is_kept[blocks].all():
            raise IllegalMove("a block is not kept")
        self._is_kept[blocks] = False
        self._num_kept_idle -= self._leave(blocks)

    def num_holders(self, block_id: int) -> int:
        """How many hold a block, the keeper among them; 0 for an empty one."""
        return int(self._holders[block_id])

    def num_only_kept(self, blocks: BlockIds) -> int:
        """How many of these kept blocks nobody but the keeper holds."""
        return int(np.count_nonzero(self._holders[blocks] == 1))

    def check_integrity(self) -> None:
        """Raises `KvferryError` unless every block is empty, only kept or held, and each kind is counted right."""
        num_empty = int(np.count_nonzero(self._holders == 0))
        if num_empty != self._num_empty:
            raise KvferryError(f"{num_empty} blocks are empty, {self._num_empty} are counted")
        wrong = np.flatnonzero(self._holders < self._is_kept)
        if len(wrong):
            raise KvferryError(f"block {wrong[0]} has {self._holders[wrong[0]]} holders and is kept")
        num_kept_idle = len(self._only_kept(np.arange(self.num_blocks)))
        if num_kept_idle != self._num_kept_idle:
            raise KvferryError(f"{num_kept_idle} blocks are only kept, {self._num_kept_idle} are counted")

    def _only_kept(self, blocks: BlockIds) -> BlockIds:
        only_kept: BlockIds = blocks[(self._holders[blocks] == 1) & self._is_kept[blocks]]
        return only_kept

    def _leave(self, blocks: BlockIds) -> int:
        """A holder of each leaves; how many are empty then."""
        self._holders[blocks] -= 1
        num_emptied = len(blocks) - int(np.count_nonzero(self._holders[blocks]))
        self._num_empty += num_emptied
        return num_emptied

    def _take(self, start: int, num_blocks: int, taken: list[int]) -> None:
        self._holders[start : start + num_blocks] = 1
        taken.extend(range(start, start + num_blocks))

    def _num_empty_from(self, start: int, num_most: int) -> int:
        """Length of the run of empty blocks from `start` on, which may be none, as far as it matters."""
        is_held = self._holders[start : start + num_most] > 0
        return int(is_held.argmax()) if is_held.any() else len(is_held)

    def _empty_runs(self) -> Iterator[tuple[int, int]]:
        """First block and length of each run of empty blocks, the longest first."""
        is_empty = np.zeros(self.num_blocks + 2, np.bool_)
        np.equal(self._holders, 0, out=is_empty[1:-1])
        edges = np.flatnonzero(is_empty[1:] != is_empty[:-1])
        starts, lengths = edges[::2], edges[1::2] - edges[::2]
        longest = int(lengths.argmax())
        yield int(starts[longest]), int(lengths[longest])
        # Only who is not content with the longest pays for an order of all.
        order = np.argsort(-lengths, kind="stable")[1:]
        yield from zip(starts[order].tolist(), lengths[order].tolist(), strict=True)

    def _checked(self, block_ids: Iterable[int]) -> BlockIds:
        """These blocks as an array. Raises `IllegalMove` if one is unknown, empty, or named twice."""
        blocks = np.fromiter(block_ids, np.intp)
        if not len(blocks):
            return blocks
        is_known = (blocks >= 0) & (blocks < self.num_blocks)
        is_held = is_known.all() and self._holders[blocks].all()
        if not is_held:
            wrong = next(int(block) for block in blocks if not 0 <= block < self.num_blocks or not self._holders[block])
            raise IllegalMove(f"block {wrong} is not held by anyone")
        places = np.arange(len(blocks))
        self._place[blocks] = places
        if (self._place[blocks] != places).any():
            raise IllegalMove("a block was named twice in one call")
        return blocks


def _start_in(start: int, length: int, num_blocks: int) -> int:
    """Where in an empty run `num_blocks` are best taken: from its middle if they fit behind it."""
    # A run at the very beginning follows nobody who could grow into it.
    has_neighbour = start > 0 and length - length // 2 >= num_blocks
    return start + length // 2 if has_neighbour else start


class BlockTable:
    """One sequence's blocks, in the order of its positions. Append-only; gives all of them back exactly once."""

    def __init__(self, pool: BlockPool, block_size: int, block_ids: Sequence[int] = ()) -> None:
        """Begins with `block_ids`, which are full and whose holder, one of each block's, it becomes."""
        if block_size < 1:
            raise ConfigError(f"a block holds at least one token, got {block_size}")
        self._pool = pool
        self._block_size = block_size
        self._block_ids = [*block_ids]
        self._is_released = False

    @property
    def block_ids(self) -> Sequence[int]:
        """The blocks held. A view that grows with the table, not a copy."""
        return self._block_ids

    @property
    def num_tokens_held(self) -> int:
        """Positions that fit without another block."""
        return len(self._block_ids) * self._block_size

    def num_missing(self, num_tokens: int) -> int:
        """Blocks that `ensure(num_tokens)` would allocate."""
        return max(0, -(-num_tokens // self._block_size) - len(self._block_ids))

    def ensure(self, num_tokens: int) -> None:
        """Allocates what `num_tokens` positions still need. Raises `OutOfBlocks`, and takes none, if it cannot."""
        if self._is_released:
            raise IllegalMove("the block table was released")
        last = self._block_ids[-1] if self._block_ids else None
        self._block_ids.extend(self._pool.allocate(self.num_missing(num_tokens), after=last))

    def fork(self, num_shared_tokens: int) -> BlockTable:
        """A table that shares the full blocks among the first `num_shared_tokens` positions, to be grown with `ensure`.

        Each of them gets a holder more, which the new table gives back. Raises `IllegalMove`, and shares nothing, after
        release or when fewer blocks are held.
        """
        if self._is_released:
            raise IllegalMove("the block table was released")
        num_shared = num_shared_tokens // self._block_size
        if not 0 <= num_shared <= len(self._block_ids):
            raise IllegalMove(f"cannot share {num_shared} blocks of a table that holds {len(self._block_ids)}")
        shared = self._block_ids[:num_shared]
        self._pool.share(shared)
        return BlockTable(self._pool, self._block_size, shared)

    def adopt(self, block_ids: Sequence[int], start: int) -> None:
        """Puts full blocks, whose holder it becomes, in the place of its own from the `start`-th on, which it gives back.
        Raises `IllegalMove`, and changes nothing, after release or when there are fewer.
        """
        end = start + len(block_ids)
        if self._is_released or not 0 <= start <= end <= len(self._block_ids):
            raise IllegalMove(f"a table of {len(self._block_ids)} blocks has no place for others from {start} to {end}")
        left = self._block_ids[start:end]
        self._block_ids[start:end] = block_ids
        self._pool.release(left)

    def release(self) -> None:
        """Gives all blocks back. Raises `IllegalMove` the second time."""
        if self._is_released:
            raise IllegalMove("the block table was released already")
        self._is_released = True
        self._pool.release(self._block_ids)
        self._block_ids = []
