"""Who holds which blocks of the KV cache: integers only. Knows nothing of tensors or of what the blocks contain."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np

from protocol.errors import ConfigError, IllegalMove, KvferryError, OutOfBlocks


class Keeper(Protocol):
    """Who is one of the holders of some blocks, its *kept* ones, only until there is need of room: a prefix cache."""

    def on_held(self, block_ids: Sequence[int]) -> None:
        """These kept blocks have another holder again."""
        ...

    def on_left(self, block_ids: Sequence[int]) -> None:
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
        self._holders = [0] * num_blocks
        self._is_empty = bytearray(b"\1" * num_blocks)
        self._is_kept = bytearray(num_blocks)
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
        if num_blocks > self.num_free:
            raise OutOfBlocks(f"{num_blocks} blocks are needed and {self.num_free} of {self.num_blocks} are free")
        if num_blocks > self._num_empty and self._keeper is not None:
            self._keeper.make_room(num_blocks - self._num_empty)
        taken: list[int] = []
        if after is not None:
            self._take(after + 1, num_blocks, taken)
        if len(taken) < num_blocks:
            for start, length in self._empty_runs():
                self._take(_start_in(start, length, num_blocks - len(taken)), num_blocks, taken)
                if len(taken) == num_blocks:
                    break
        self._num_empty -= num_blocks
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Adds a holder to each block. Raises `IllegalMove`, and changes nothing, if one of them is empty or unknown."""
        wanted = list(block_ids)
        self._check_held(wanted)
        self.hold_kept(wanted)

    def hold_kept(self, block_ids: Sequence[int]) -> int:
        """As `share`, for the keeper's own blocks, which are not looked at again: how many of them nobody else held."""
        reheld = self._only_kept(block_ids)
        holders = self._holders
        for block in block_ids:
            holders[block] += 1
        self._num_kept_idle -= len(reheld)
        if reheld and self._keeper is not None:
            self._keeper.on_held(reheld)
        return len(reheld)

    def release(self, block_ids: Iterable[int]) -> None:
        """Takes a holder from each block. Raises `IllegalMove`, and changes nothing, if one of them has none but the keeper."""
        given = list(block_ids)
        self._check_held(given)
        if len(set(given)) != len(given):
            raise IllegalMove("a block was released twice in one call")
        if only_kept := self._only_kept(given):
            raise IllegalMove(f"block {only_kept[0]} is only kept, not held by anyone")
        holders = self._holders
        for block in given:
            holders[block] -= 1
            if not holders[block]:
                self._empty(block)
        left = self._only_kept(given)
        self._num_kept_idle += len(left)
        if left and self._keeper is not None:
            self._keeper.on_left(left)

    def keep(self, block_ids: Sequence[int]) -> None:
        """Makes the keeper a holder of each block. Raises `IllegalMove`, and changes nothing, if nobody holds one, or the
        keeper does.
        """
        self._check_held(block_ids)
        if len(set(block_ids)) != len(block_ids) or any(self._is_kept[block] for block in block_ids):
            raise IllegalMove("a block is kept already")
        for block in block_ids:
            self._is_kept[block] = 1
            self._holders[block] += 1

    def unkeep(self, block_ids: Sequence[int]) -> None:
        """The keeper is a holder no longer. Raises `IllegalMove`, and changes nothing, for a block that it does not keep."""
        self._check_held(block_ids)
        if len(set(block_ids)) != len(block_ids) or not all(self._is_kept[block] for block in block_ids):
            raise IllegalMove("a block is not kept")
        for block in block_ids:
            self._is_kept[block] = 0
            self._holders[block] -= 1
            if not self._holders[block]:
                self._num_kept_idle -= 1
                self._empty(block)

    def num_holders(self, block_id: int) -> int:
        """How many hold a block, the keeper among them; 0 for an empty one."""
        return self._holders[block_id]

    def num_only_kept(self, block_ids: Sequence[int]) -> int:
        """How many of these kept blocks nobody but the keeper holds."""
        return [*map(self._holders.__getitem__, block_ids)].count(1)

    def check_integrity(self) -> None:
        """Raises `KvferryError` unless every block is empty, only kept or held, and each kind is counted right."""
        if sum(self._is_empty) != self._num_empty:
            raise KvferryError(f"{sum(self._is_empty)} blocks are empty, {self._num_empty} are counted")
        num_kept_idle = 0
        for block, holders in enumerate(self._holders):
            is_empty, is_kept = bool(self._is_empty[block]), bool(self._is_kept[block])
            num_kept_idle += is_kept and holders == 1
            if holders < is_kept or (holders == 0) != is_empty:
                raise KvferryError(f"block {block} has {holders} holders and is{'' if is_empty else ' not'} empty")
        if num_kept_idle != self._num_kept_idle:
            raise KvferryError(f"{num_kept_idle} blocks are only kept, {self._num_kept_idle} are counted")

    def _only_kept(self, block_ids: Sequence[int]) -> list[int]:
        holders, is_kept = self._holders, self._is_kept
        return [block for block in block_ids if holders[block] == 1 and is_kept[block]]

    def _empty(self, block: int) -> None:
        self._is_empty[block] = 1
        self._num_empty += 1

    def _take(self, start: int, num_wanted: int, taken: list[int]) -> None:
        """Takes empty neighbours from `start` on until `taken` has `num_wanted` or a block is held."""
        block = start
        while len(taken) < num_wanted and block < self.num_blocks and self._is_empty[block]:
            self._is_empty[block] = 0
            self._holders[block] = 1
            taken.append(block)
            block += 1

    def _empty_runs(self) -> Iterator[tuple[int, int]]:
        """First block and length of each run of empty blocks, the longest first."""
        edges = np.flatnonzero(np.diff(np.frombuffer(self._is_empty, np.uint8), prepend=0, append=0))
        starts, lengths = edges[::2], edges[1::2] - edges[::2]
        longest = int(lengths.argmax())
        yield int(starts[longest]), int(lengths[longest])
        # Only who is not content with the longest pays for an order of all.
        for run in np.argsort(-lengths, kind="stable")[1:]:
            yield int(starts[run]), int(lengths[run])

    def _check_held(self, block_ids: Sequence[int]) -> None:
        # Without a loop in Python: a long prompt has thousands of blocks.
        if not block_ids or (
            min(block_ids) >= 0 and max(block_ids) < self.num_blocks and all(map(self._holders.__getitem__, block_ids))
        ):
            return
        wrong = next(block for block in block_ids if not 0 <= block < self.num_blocks or not self._holders[block])
        raise IllegalMove(f"block {wrong} is not held by anyone")


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
