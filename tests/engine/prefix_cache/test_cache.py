"""The prefix cache: found is what was kept, nothing held is ever given away, and all blocks are accounted for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from engine.block_pool import BlockPool
from engine.prefix_cache.cache import PrefixCache
from engine.prefix_cache.policy import PrefixCachePolicy
from protocol.errors import IllegalMove, OutOfBlocks
from protocol.prefix import HashChain, PrefixIdentity
from tests.engine.prefix_cache.running import BLOCK, IDENTITY, compute, start

SALTED = replace(IDENTITY, cache_salt="mine")
POLICIES = pytest.mark.parametrize("policy", list(PrefixCachePolicy))


def opened(policy: PrefixCachePolicy, num_blocks: int = 16) -> tuple[PrefixCache, BlockPool]:
    """A cache over a pool of its own."""
    pool = BlockPool(num_blocks)
    return PrefixCache(pool, BLOCK, policy), pool


def run(cache: PrefixCache, pool: BlockPool, token_ids: tuple[int, ...], identity: PrefixIdentity = IDENTITY) -> int:
    """Serves a prompt from beginning to end; the blocks that were found."""
    one = start(cache, pool, token_ids, identity)
    num_found = one.num_computed
    compute(cache, one, len(token_ids))
    one.table.release()
    cache.check_integrity()
    return num_found


@POLICIES
@pytest.mark.parametrize(
    ("second", "num_found"),
    [
        ((1, 2, 3, 4), 1),
        ((1, 2, 3, 4, 5), 2),
        ((1, 2, 3, 4, 5, 6, 7), 2),
        ((1, 2, 3, 9, 9), 1),
        ((9, 2, 3), 0),
        ((1,), 0),
    ],
)
def test_a_prompt_finds_what_it_begins_with(policy: PrefixCachePolicy, second: tuple[int, ...], num_found: int) -> None:
    """Full blocks only, from the first on, and never the last token: one token past a block finds that block too."""
    cache, pool = opened(policy)
    assert run(cache, pool, (1, 2, 3, 4, 5)) == 0
    assert run(cache, pool, second) == num_found
    assert cache.counters.num_hit_blocks == num_found
    assert cache.counters.num_hit_tokens == BLOCK * num_found
    assert cache.counters.num_query_tokens == 5 + len(second)
    assert cache.counters.num_queries == 2


@POLICIES
def test_other_identities_find_nothing(policy: PrefixCachePolicy) -> None:
    """The same prompt under two adapters, the base model, another precision and a salt is computed five times."""
    cache, pool = opened(policy)
    identities = [
        IDENTITY,
        replace(IDENTITY, adapter="a"),
        replace(IDENTITY, adapter="b"),
        replace(IDENTITY, wire_precision="channel"),
        SALTED,
    ]
    assert [run(cache, pool, (1, 2, 3, 4, 5), one) for one in identities] == [0] * 5
    assert [run(cache, pool, (1, 2, 3, 4, 5), one) for one in identities] == [2] * 5


@POLICIES
def test_a_prompt_that_looks_again_finds_what_was_cached_since(policy: PrefixCachePolicy) -> None:
    """What follows its own blocks only, counted as found and not as another question."""
    cache, pool = opened(policy)
    first, second = (start(cache, pool, (1, 2, 3, 4, 5, 6, 7)) for _ in range(2))
    compute(cache, first, 1)
    one = cache.match_more(second.chain.hashes, 7, 0)
    compute(cache, first, 3)
    others = cache.match_more(second.chain.hashes, 7, 1)
    assert [*one, *others] == first.table.block_ids[:3]
    assert cache.match_more(second.chain.hashes, 7, 3) == []
    assert (cache.counters.num_queries, cache.counters.num_hit_blocks) == (2, 3)
    assert cache.counters.num_hit_tokens == 3 * BLOCK
    for table in (first.table, second.table):
        table.release()
    pool.release([*one, *others])
    cache.check_integrity()


@POLICIES
def test_two_equal_prompts_at_once(policy: PrefixCachePolicy) -> None:
    """Both compute their own blocks; the first to be done has them kept, and the other's are free when it ends."""
    cache, pool = opened(policy)
    first, second = (start(cache, pool, (1, 2, 3, 4, 5)) for _ in range(2))
    compute(cache, first, 1)
    compute(cache, second, 2)
    compute(cache, first, 2)
    third = start(cache, pool, (1, 2, 3, 4, 5))
    assert list(third.table.block_ids[:2]) == [first.table.block_ids[0], second.table.block_ids[1]]
    for one in (first, second, third):
        one.table.release()
    assert (cache.num_blocks, pool.num_kept_idle, pool.num_free) == (2, 2, pool.num_blocks)
    cache.check_integrity()


@POLICIES
def test_asking_once_more_counts_what_is_new(policy: PrefixCachePolicy) -> None:
    """A prompt that looks again is one query, and gets what follows the blocks that it has."""
    cache, pool = opened(policy)
    first, second = (start(cache, pool, (1, 2, 3, 4, 5, 6, 7)) for _ in range(2))
    compute(cache, first, 2)
    before = replace(cache.counters)
    found = cache.match_more(second.chain.hashes, 7, 0)
    compute(cache, first, 3)
    more = cache.match_more(second.chain.hashes, 7, 2)
    assert found + more == list(first.table.block_ids[:3])
    expected = replace(before, num_hit_tokens=3 * BLOCK, num_hit_blocks=3, num_stored_blocks=3)
    assert cache.counters == expected
    for blocks in (found, more):
        pool.release(blocks)
    first.table.release()
    second.table.release()
    cache.check_integrity()


@POLICIES
def test_what_is_held_is_not_evicted(policy: PrefixCachePolicy) -> None:
    """With all other blocks wanted, those that a sequence was given from the cache stay, and so they do when none is left."""
    cache, pool = opened(policy)
    run(cache, pool, tuple(range(13)))
    one = start(cache, pool, (0, 1, 2, 3, 4))
    rest = pool.allocate(pool.num_free)
    assert not set(rest) & set(one.table.block_ids)
    assert cache.num_blocks == 2
    with pytest.raises(OutOfBlocks):
        pool.allocate(1)
    pool.release(rest)
    one.table.release()
    assert run(cache, pool, (0, 1, 2, 3, 4)) == 2


@POLICIES
def test_room_is_made_from_the_leaves_and_no_more_than_is_needed(policy: PrefixCachePolicy) -> None:
    """A long prompt loses its end first, block by block, and empty blocks are used before any is evicted."""
    cache, pool = opened(policy)
    run(cache, pool, tuple(range(13)))
    held = pool.allocate(10)
    assert cache.num_blocks == 6
    for num_left in (5, 4, 3, 2, 1, 0):
        held += pool.allocate(1)
        assert cache.num_blocks == num_left
        assert cache.peek(HashChain(IDENTITY, range(13)).hashes, 13).num_blocks == num_left
    assert cache.counters.num_evicted_blocks == 6
    cache.check_integrity()


@POLICIES
def test_of_several_branches_the_oldest_goes_first(policy: PrefixCachePolicy) -> None:
    """Prompts that begin alike lose their own ends in the order of their use, and the beginning last."""
    cache, pool = opened(policy)
    ends = [3, 8, 5, 7, 4, 6]
    for end in ends:
        run(cache, pool, (1, 2, end, end, 0))
    held = pool.allocate(pool.num_free - pool.num_kept_idle)
    for num_gone in range(1, 7):
        held += pool.allocate(1)
        chains = [HashChain(IDENTITY, (1, 2, end, end, 0)).hashes for end in ends]
        assert [cache.peek(hashes, 5).num_blocks for hashes in chains] == [1] * num_gone + [2] * (6 - num_gone)


@POLICIES
def test_nothing_is_kept_that_cannot_be_found(policy: PrefixCachePolicy) -> None:
    """If the kept beginning goes while another sequence holds the kept end, with a beginning of its own, the end is not kept
    any longer either, stays that sequence's, and is kept again with its next block.
    """
    cache, pool = opened(policy, num_blocks=8)
    first, second = (start(cache, pool, (1, 2, 3, 4, 5, 6, 7)) for _ in range(2))
    compute(cache, first, 1)
    compute(cache, second, 2)
    first.table.release()
    held = pool.allocate(4)
    cache.check_integrity()
    assert cache.num_blocks == 0
    compute(cache, second, 3)
    cache.check_integrity()
    assert cache.num_blocks == 3
    second.table.release()
    pool.release(held)
    assert run(cache, pool, (1, 2, 3, 4, 5, 6, 7)) == 3


@POLICIES
def test_clearing_leaves_running_sequences_alone(policy: PrefixCachePolicy) -> None:
    """Nothing is found after it; blocks in use stay, and are free when their sequence ends."""
    cache, pool = opened(policy)
    run(cache, pool, (9, 9, 9))
    one = start(cache, pool, (1, 2, 3))
    compute(cache, one, 1)
    cache.clear()
    cache.check_integrity()
    assert pool.num_free == pool.num_blocks - 2
    assert run(cache, pool, (1, 2, 3)) == 0
    one.table.release()
    assert pool.num_free == pool.num_blocks


def test_only_what_is_there_can_be_kept() -> None:
    """Blocks without names, names without blocks and a range that runs backwards are refused, and nothing is kept."""
    cache, pool = opened(PrefixCachePolicy.LRU)
    one = start(cache, pool, (1, 2, 3))
    hashes = one.chain.hashes
    for start_block, end in ((0, 2), (-1, 1), (1, 0)):
        with pytest.raises(IllegalMove):
            cache.insert(hashes, one.table.block_ids, start_block, end)
    with pytest.raises(IllegalMove):
        cache.insert(hashes, [], 0, 1)
    assert cache.num_blocks == 0


def test_a_pool_has_one_keeper() -> None:
    """Two caches over one pool would give away each other's blocks."""
    _, pool = opened(PrefixCachePolicy.LRU)
    with pytest.raises(IllegalMove, match="keeper"):
        PrefixCache(pool, BLOCK)
