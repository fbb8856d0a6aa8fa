"""Who holds which blocks of the KV cache: integers only. Knows nothing of tensors or of what the blocks contain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from protocol.errors import ConfigError, IllegalMove, KvferryError, OutOfBlocks


class BlockPool:
    """Blocks `0 .. num_blocks - 1`, each with a count of its holders. A block without holders is free.

    Hands out neighbours where it can: a sequence whose blocks follow each other in memory is attended to without a copy.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ConfigError(f"a block pool needs at least one block, got {num_blocks}")
        self.num_blocks = num_blocks
        self._holders = [0] * num_blocks
        self._is_free = bytearray(b"\1" * num_blocks)
        self._num_free = num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out now."""
        return self._num_free

    def allocate(self, num_blocks: int, *, after: int | None = None) -> list[int]:
        """Takes free blocks, each with one holder. Raises `OutOfBlocks`, and takes none, if there are fewer.

        Those that follow block `after` come first; the others lie in the middle of the longest free run, so that whoever
        holds the blocks before it can still grow.
        """
        if num_blocks < 0:
            raise ConfigError(f"cannot allocate {num_blocks} blocks")
        if num_blocks > self._num_free:
            raise OutOfBlocks(f"{num_blocks} blocks are needed and {self._num_free} of {self.num_blocks} are free")
        taken: list[int] = []
        if after is not None:
            self._take(after + 1, num_blocks, taken)
        while len(taken) < num_blocks:
            self._take(self._start_for(num_blocks - len(taken)), num_blocks, taken)
        self._num_free -= num_blocks
        return taken

    def share(self, block_ids: Iterable[int]) -> None:
        """Adds a holder to each block. Raises `IllegalMove`, and changes nothing, if one of them is free or unknown."""
        wanted = list(block_ids)
        self._check_held(wanted)
        for block in wanted:
            self._holders[block] += 1

    def release(self, block_ids: Iterable[int]) -> None:
        """Takes a holder from each block. Raises `IllegalMove`, and changes nothing, if one of them has none."""
        given = list(block_ids)
        self._check_held(given)
        if len(set(given)) != len(given):
            raise IllegalMove("a block was released twice in one call")
        for block in given:
            self._holders[block] -= 1
            if not self._holders[block]:
                self._is_free[block] = 1
                self._num_free += 1

    def num_holders(self, block_id: int) -> int:
        """How many hold a block; 0 for a free one."""
        return self._holders[block_id]

    def check_integrity(self) -> None:
        """Raises `KvferryError` unless every block is either free or held, and the free ones are counted right."""
        if sum(self._is_free) != self._num_free:
            raise KvferryError(f"{sum(self._is_free)} blocks are free, {self._num_free} are counted")
        for block, holders in enumerate(self._holders):
            is_free = bool(self._is_free[block])
            if holders < 0 or (holders == 0) != is_free:
                raise KvferryError(f"block {block} has {holders} holders and is{'' if is_free else ' not'} free")

    def _take(self, start: int, num_wanted: int, taken: list[int]) -> None:
        """Takes free neighbours from `start` on until `taken` has `num_wanted` or a block is held."""
        block = start
        while len(taken) < num_wanted and block < self.num_blocks and self._is_free[block]:
            self._is_free[block] = 0
            self._holders[block] = 1
            taken.append(block)
            block += 1

    def _start_for(self, num_blocks: int) -> int:
        """Where in the longest free run `num_blocks` are best taken: from its middle if they fit behind it."""
        start = longest = position = 0
        for run in self._is_free.split(b"\0"):
            if len(run) > longest:
                start, longest = position, len(run)
            position += len(run) + 1
        # A run at the very beginning follows nobody who could grow into it.
        has_neighbour = start > 0 and longest - longest // 2 >= num_blocks
        return start + longest // 2 if has_neighbour else start

    def _check_held(self, block_ids: Sequence[int]) -> None:
        for block in block_ids:
            if not 0 <= block < self.num_blocks or not self._holders[block]:
                raise IllegalMove(f"block {block} is not held by anyone")


class BlockTable:
    """One sequence's blocks, in the order of its positions. Append-only; gives all of them back exactly once."""

    def __init__(self, pool: BlockPool, block_size: int) -> None:
        if block_size < 1:
            raise ConfigError(f"a block holds at least one token, got {block_size}")
        self._pool = pool
        self._block_size = block_size
        self._block_ids: list[int] = []
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
        child = BlockTable(self._pool, self._block_size)
        child._block_ids = shared
        return child

    def release(self) -> None:
        """Gives all blocks back. Raises `IllegalMove` the second time."""
        if self._is_released:
            raise IllegalMove("the block table was released already")
        self._is_released = True
        self._pool.release(self._block_ids)
        self._block_ids = []
