"""The prefix cache under any order of events, against a dict of names and a count of holders."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, invariant, rule

from engine.block_pool import BlockPool
from engine.prefix_cache.cache import PrefixCache, PrefixPeek
from engine.prefix_cache.policy import PrefixCachePolicy
from protocol.errors import OutOfBlocks
from protocol.prefix import HashChain, PrefixIdentity
from protocol.prefix_events import BlocksEvicted, BlocksStored, CacheCleared
from tests.engine.prefix_cache.running import BLOCK, IDENTITY, Running, compute, start

NUM_BLOCKS = 9
SALTED = replace(IDENTITY, cache_salt="mine")


class CacheMachine(RuleBasedStateMachine):
    """Prompts that begin alike come, compute and go, and the pool is too small, against a dict and a count of holders.

    The model keeps what every block contains. Which block goes when room is short is the policy's; the model learns it from
    the events, and checks that it could go.
    """

    running: Bundle[Running] = Bundle("running")

    @initialize(policy=st.sampled_from(PrefixCachePolicy))
    def begin(self, policy: PrefixCachePolicy) -> None:
        self.pool = BlockPool(NUM_BLOCKS)
        self.cache = PrefixCache(self.pool, BLOCK, policy)
        self.kept: dict[bytes, int] = {}
        self.content: dict[int, tuple[PrefixIdentity, tuple[int, ...]]] = {}
        self.holders: dict[int, int] = {}
        self.next_event = 0

    @rule(
        target=running,
        token_ids=st.lists(st.integers(0, 1), max_size=14).map(tuple),
        identity=st.sampled_from([IDENTITY, IDENTITY, SALTED]),
    )
    def admit(self, token_ids: tuple[int, ...], identity: PrefixIdentity) -> Running:
        hashes = HashChain(identity, token_ids).hashes
        expected = self.expected(hashes, len(token_ids))
        num_idle = sum(block not in self.holders for block in expected)
        assert self.cache.peek(hashes, len(token_ids)) == PrefixPeek(len(expected), num_idle)
        has_room = -(-len(token_ids) // BLOCK) - len(expected) + num_idle <= self.pool.num_free
        try:
            one = start(self.cache, self.pool, token_ids, identity)
        except OutOfBlocks:
            assert not has_room
            return start(self.cache, self.pool, ())
        assert has_room
        assert list(one.table.block_ids[: len(expected)]) == expected
        for index, block in enumerate(expected, start=1):
            assert self.content[block] == (identity, token_ids[: BLOCK * index])
        self.learn()
        for block in one.table.block_ids[len(expected) :]:
            assert block not in self.holders
            assert block not in self.kept.values()
            self.content.pop(block, None)
        for block in one.table.block_ids:
            self.holders[block] = self.holders.get(block, 0) + 1
        return one

    @rule(one=running, end=st.integers(0, 7))
    def compute(self, one: Running, end: int) -> None:
        end = min(end, len(one.chain.hashes))
        for index in range(one.num_computed, end):
            self.content[one.table.block_ids[index]] = (one.identity, one.token_ids[: BLOCK * (index + 1)])
        before, has_more = dict(self.kept), end > one.num_computed
        compute(self.cache, one, end)
        self.learn(one)
        assert all(self.kept[key] == block for key, block in before.items())  # the first one wins
        if has_more:
            assert all(key in self.kept for key in one.chain.hashes[:end])

    @rule(one=running)
    def ask_again(self, one: Running) -> None:
        expected = self.expected(one.chain.hashes, len(one.token_ids))
        num_idle = sum(block not in self.holders for block in expected)
        for _ in range(2):
            assert self.cache.peek(one.chain.hashes, len(one.token_ids)) == PrefixPeek(len(expected), num_idle)

    @rule(one=consumes(running))
    def end(self, one: Running) -> None:
        blocks = list(one.table.block_ids)
        one.table.release()
        for block in blocks:
            self.holders[block] -= 1
            if not self.holders[block]:
                del self.holders[block]

    @rule()
    def clear(self) -> None:
        self.cache.clear()
        self.learn()
        assert not self.kept

    @invariant()
    def nothing_is_lost(self) -> None:
        if not hasattr(self, "cache"):
            return
        self.cache.check_integrity()
        assert set(self.cache.snapshot().hashes) == set(self.kept)
        num_only_kept = len(set(self.kept.values()) - set(self.holders))
        num_empty = self.pool.num_free - self.pool.num_kept_idle
        assert self.pool.num_kept_idle == num_only_kept
        assert num_empty + num_only_kept + len(self.holders) == NUM_BLOCKS
        for block in range(NUM_BLOCKS):
            is_kept = block in self.kept.values()
            assert self.pool.num_holders(block) == self.holders.get(block, 0) + is_kept

    def expected(self, hashes: list[bytes], num_tokens: int) -> list[int]:
        """The longest beginning that the model has, without the block of the last token."""
        found: list[int] = []
        for key in hashes[: max(0, num_tokens - 1) // BLOCK]:
            if key not in self.kept:
                break
            found.append(self.kept[key])
        return found

    def learn(self, stored: Running | None = None) -> None:
        """Takes over what the cache says it evicted, and what it stored of this sequence."""
        batch = self.cache.events.since(self.next_event)
        assert batch is not None
        self.next_event = batch.next_number
        for event in batch.events:
            if isinstance(event, BlocksStored):
                assert stored is not None
                assert event.parent is None or event.parent in self.kept
                for key in event.hashes:
                    assert key not in self.kept
                    self.kept[key] = stored.table.block_ids[stored.chain.hashes.index(key)]
            elif isinstance(event, BlocksEvicted):
                for key in event.hashes:
                    del self.kept[key]
            else:
                assert isinstance(event, CacheCleared)
                self.kept.clear()


CacheMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestCacheMachine = CacheMachine.TestCase
