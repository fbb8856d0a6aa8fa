"""Who holds which blocks of the KV cache: integers only. Knows nothing of tensors or of what the blocks contain."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from protocol.errors import ConfigError, IllegalMove, KvferryError, OutOfBlocks


class BlockPool:
    """Blocks `0 .. num_blocks - 1`, each with a count of its holders. A block without holders is free."""

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 1:
            raise ConfigError(f"a block pool needs at least one block, got {num_blocks}")
        self.num_blocks = num_blocks
        self._holders = [0] * num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can hand out now."""
        return len(self._free)

    def allocate(self, num_blocks: int) -> list[int]:
        """Takes free blocks, each with one holder. Raises `OutOfBlocks`, and takes none, if there are fewer."""
        if num_blocks < 0:
            raise ConfigError(f"cannot allocate {num_blocks} blocks")
        if num_blocks > len(self._free):
            raise OutOfBlocks(f"{num_blocks} blocks are needed and {len(self._free)} of {self.num_blocks} are free")
        taken = [self._free.pop() for _ in range(num_blocks)]
        for block in taken:
            self._holders[block] = 1
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
                self._free.append(block)

    def num_holders(self, block_id: int) -> int:
        """How many hold a block; 0 for a free one."""
        return self._holders[block_id]

    def check_integrity(self) -> None:
        """Raises `KvferryError` unless every block is either free or held, and no block is free twice."""
        free = set(self._free)
        if len(free) != len(self._free):
            raise KvferryError("a block is in the free list twice")
        for block, holders in enumerate(self._holders):
            if holders < 0 or (holders == 0) != (block in free):
                raise KvferryError(f"block {block} has {holders} holders and is{'' if block in free else ' not'} free")

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
        self._block_ids.extend(self._pool.allocate(self.num_missing(num_tokens)))

    def release(self) -> None:
        """Gives all blocks back. Raises `IllegalMove` the second time."""
        if self._is_released:
            raise IllegalMove("the block table was released already")
        self._is_released = True
        self._pool.release(self._block_ids)
        self._block_ids = []
