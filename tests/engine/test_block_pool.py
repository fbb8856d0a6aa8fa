"""Blocks: never lost, never handed out twice, given back exactly once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from engine.block_pool import BlockIds, BlockPool, BlockTable
from protocol.errors import ConfigError, IllegalMove, OutOfBlocks

NUM_BLOCKS = 12
BLOCK_SIZE = 4


class PoolMachine(RuleBasedStateMachine):
    """Tables that grow and end, and holders that share, in any order, against a plain count."""

    tables: Bundle[BlockTable] = Bundle("tables")
    shares: Bundle[list[int]] = Bundle("shares")

    def __init__(self) -> None:
        super().__init__()
        self.pool = BlockPool(NUM_BLOCKS)
        self.holders: dict[int, int] = {}

    @rule(target=tables)
    def open_table(self) -> BlockTable:
        return BlockTable(self.pool, BLOCK_SIZE)

    @rule(table=tables, num_tokens=st.integers(0, 70))
    def grow(self, table: BlockTable, num_tokens: int) -> None:
        before = list(table.block_ids)
        needed = table.num_missing(num_tokens)
        free = self.pool.num_free
        try:
            table.ensure(num_tokens)
        except OutOfBlocks:
            assert needed > free
            assert list(table.block_ids) == before
            return
        assert list(table.block_ids[: len(before)]) == before
        assert len(table.block_ids) * BLOCK_SIZE >= num_tokens
        for block in table.block_ids[len(before) :]:
            assert block not in self.holders
            self.holders[block] = 1

    @rule(table=consumes(tables))
    def end(self, table: BlockTable) -> None:
        self._drop(list(table.block_ids))
        table.release()
        with pytest.raises(IllegalMove):
            table.release()
        with pytest.raises(IllegalMove):
            table.ensure(1)
        with pytest.raises(IllegalMove):
            table.fork(0)

    @rule(target=tables, table=tables, num_tokens=st.integers(0, 70))
    def fork(self, table: BlockTable, num_tokens: int) -> BlockTable:
        num_shared = num_tokens // BLOCK_SIZE
        before = list(table.block_ids)
        if num_shared > len(before):
            with pytest.raises(IllegalMove, match="cannot share"):
                table.fork(num_tokens)
            return BlockTable(self.pool, BLOCK_SIZE)
        child = table.fork(num_tokens)
        assert list(child.block_ids) == before[:num_shared]
        assert list(table.block_ids) == before
        for block in child.block_ids:
            self.holders[block] += 1
        return child

    @rule(target=shares, table=tables)
    def share(self, table: BlockTable) -> list[int]:
        blocks = list(table.block_ids)
        self.pool.share(blocks)
        for block in blocks:
            self.holders[block] += 1
        return blocks

    @rule(blocks=consumes(shares))
    def unshare(self, blocks: list[int]) -> None:
        self.pool.release(blocks)
        self._drop(blocks)

    @invariant()
    def pool_agrees_with_the_count(self) -> None:
        self.pool.check_integrity()
        assert self.pool.num_free + len(self.holders) == NUM_BLOCKS
        assert all(self.pool.num_holders(block) == count for block, count in self.holders.items())

    def _drop(self, blocks: list[int]) -> None:
        for block in blocks:
            self.holders[block] -= 1
            if not self.holders[block]:
                del self.holders[block]


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestPoolMachine = PoolMachine.TestCase


def test_a_failed_allocation_takes_nothing() -> None:
    """When fewer blocks are free than asked for, none is taken."""
    pool = BlockPool(4)
    pool.allocate(3)
    with pytest.raises(OutOfBlocks, match="2 blocks are needed and 1 of 4 are free"):
        pool.allocate(2)
    assert pool.num_free == 1


@pytest.mark.parametrize("blocks", [[0, 3], [0, 0], [0, 9], [-1]])
def test_a_wrong_release_changes_nothing(blocks: list[int]) -> None:
    """Blocks that are free, unknown or named twice cannot be released, and the others of the call keep their holder."""
    pool = BlockPool(4)
    assert pool.allocate(3) == [0, 1, 2]
    with pytest.raises(IllegalMove):
        pool.release(blocks)
    pool.check_integrity()
    assert pool.num_free == 1


def test_a_free_block_cannot_be_shared() -> None:
    """Only a held block can get another holder, and one in a call."""
    pool = BlockPool(2)
    held = pool.allocate(1)
    for wrong in ([1], [*held, 1], held * 2):
        with pytest.raises(IllegalMove):
            pool.share(wrong)
    assert pool.num_holders(held[0]) == 1


def test_sizes_must_make_sense() -> None:
    """A pool without blocks, a table of empty blocks and a negative allocation are refused."""
    with pytest.raises(ConfigError):
        BlockPool(0)
    with pytest.raises(ConfigError):
        BlockTable(BlockPool(1), 0)
    with pytest.raises(ConfigError):
        BlockPool(1).allocate(-1)


def test_a_fork_grows_and_ends_by_itself() -> None:
    """Two tables that share blocks grow apart, and the shared blocks are free once both have ended."""
    pool = BlockPool(8)
    table = BlockTable(pool, BLOCK_SIZE)
    table.ensure(3 * BLOCK_SIZE)
    child = table.fork(2 * BLOCK_SIZE + 1)
    child.ensure(4 * BLOCK_SIZE)
    assert list(child.block_ids[:2]) == list(table.block_ids[:2])
    assert not set(child.block_ids[2:]) & set(table.block_ids)
    assert len(table.block_ids) == 3
    table.release()
    assert pool.num_free == 4
    child.release()
    pool.check_integrity()
    assert pool.num_free == 8
    with pytest.raises(IllegalMove):
        BlockTable(pool, BLOCK_SIZE).fork(-1)


def test_a_table_grows_into_its_neighbour() -> None:
    """Blocks of a table follow each other while nobody stands in the way, and tables leave each other room."""
    pool = BlockPool(64)
    tables = [BlockTable(pool, BLOCK_SIZE) for _ in range(4)]
    for table in tables:
        table.ensure(3 * BLOCK_SIZE)
    for num_tokens in range(3 * BLOCK_SIZE, 8 * BLOCK_SIZE):
        for table in tables:
            table.ensure(num_tokens)
    for table in tables:
        first = table.block_ids[0]
        assert list(table.block_ids) == list(range(first, first + 8))


def test_scattered_blocks_are_handed_out_when_nothing_else_is_left() -> None:
    """Fragmentation costs speed, never capacity."""
    pool = BlockPool(8)
    held = [pool.allocate(1)[0] for _ in range(8)]
    pool.release(held[::2])
    assert sorted(pool.allocate(4)) == sorted(held[::2])
    with pytest.raises(OutOfBlocks):
        pool.allocate(1)
    pool.check_integrity()


class NotedKeeper:
    """Gives up what it keeps in order, and notes what the pool tells it."""

    def __init__(self, pool: BlockPool) -> None:
        self.pool = pool
        self.idle: list[int] = []
        pool.set_keeper(self)

    def on_held(self, block_ids: BlockIds) -> None:
        self.idle = [block for block in self.idle if block not in block_ids]

    def on_left(self, block_ids: BlockIds) -> None:
        self.idle += block_ids.tolist()

    def make_room(self, num_blocks: int) -> None:
        given_up, self.idle = self.idle[:num_blocks], self.idle[num_blocks:]
        self.pool.unkeep(given_up)


def test_kept_blocks_are_free_and_given_out_last() -> None:
    """A block that only the keeper holds counts as free; one that is shared again does not, and is not given out."""
    pool = BlockPool(6)
    keeper = NotedKeeper(pool)
    blocks = pool.allocate(4)
    pool.keep(blocks)
    pool.release(blocks)
    assert (pool.num_free, pool.num_kept_idle, keeper.idle) == (6, 4, blocks)
    pool.share(blocks[:2])
    assert (pool.num_free, keeper.idle) == (4, blocks[2:])
    assert pool.num_only_kept(np.array(blocks)) == 2
    assert not set(pool.allocate(2)) & set(blocks)
    assert pool.allocate(1) == blocks[2:3]
    assert pool.num_kept_idle == 1
    with pytest.raises(OutOfBlocks, match="2 blocks are needed and 1 of 6 are free"):
        pool.allocate(2)
    pool.check_integrity()


def test_only_held_blocks_can_be_kept_and_only_once() -> None:
    """An empty block, one that is kept and one named twice are refused; so is the release of what is only kept."""
    pool = BlockPool(4)
    NotedKeeper(pool)
    blocks = pool.allocate(2)
    pool.keep(blocks[:1])
    for wrong in ([3], blocks, [blocks[1]] * 2):
        with pytest.raises(IllegalMove):
            pool.keep(wrong)
    for wrong in ([3], blocks, blocks[:1] * 2):
        with pytest.raises(IllegalMove):
            pool.unkeep(wrong)
    pool.release(blocks[:1])
    with pytest.raises(IllegalMove, match="only kept"):
        pool.release(blocks)
    pool.check_integrity()
    pool.unkeep(blocks[:1])
    pool.release(blocks[1:])
    assert (pool.num_free, pool.num_kept_idle) == (4, 0)


def test_a_table_can_begin_with_shared_blocks() -> None:
    """It grows behind them and gives their holder back with its own."""
    pool = BlockPool(8)
    first = pool.allocate(2)
    pool.share(first)
    table = BlockTable(pool, BLOCK_SIZE, first)
    table.ensure(3 * BLOCK_SIZE)
    assert table.block_ids[:2] == first
    assert len(table.block_ids) == 3
    table.release()
    assert [pool.num_holders(block) for block in first] == [1, 1]
    assert pool.num_free == 6


def test_a_table_adopts_blocks_in_the_place_of_its_own() -> None:
    """It holds them from then on instead of its own, which are free or stay with their other holders."""
    pool = BlockPool(8)
    table = BlockTable(pool, BLOCK_SIZE)
    table.ensure(3 * BLOCK_SIZE)
    own = list(table.block_ids)
    others = pool.allocate(2)
    pool.share([own[1], *others])
    table.adopt(others, 1)
    assert list(table.block_ids) == [own[0], *others]
    assert [pool.num_holders(block) for block in own] == [1, 1, 0]
    with pytest.raises(IllegalMove, match="no place for others from 2 to 4"):
        table.adopt(others, 2)
    table.release()
    assert [pool.num_holders(block) for block in others] == [1, 1]
    with pytest.raises(IllegalMove):
        table.adopt([], 0)
    pool.check_integrity()
