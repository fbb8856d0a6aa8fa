"""The router's index of prefix caches: right as long as events arrive, honest when they do not, bounded always."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from engine.block_pool import BlockPool, BlockTable
from engine.prefix_cache.cache import PrefixCache
from engine.prefix_cache.policy import PrefixCachePolicy
from protocol.errors import ConfigError, OutOfBlocks
from protocol.ids import WorkerId
from protocol.layout import KvDtype
from protocol.prefix import HashChain, PrefixIdentity
from protocol.prefix_events import BlocksEvicted, BlocksStored, CacheCleared, EventBatch, PrefixSnapshot
from router.fleet.prefix_index import PrefixIndex

BLOCK = 2
IDENTITY = PrefixIdentity("model", KvDtype.FLOAT32, BLOCK)
WORKERS = [WorkerId(f"prefill-{number}", "life") for number in range(3)]
prompts = st.lists(st.integers(0, 1), max_size=14)
A, B, C, D = (bytes([letter]) for letter in b"abcd")


class FollowedWorker:
    """A worker's small prefix cache, whose log is short, and how far its events were delivered."""

    def __init__(self) -> None:
        self.pool = BlockPool(8)
        self.cache = PrefixCache(self.pool, BLOCK, PrefixCachePolicy.ARC, max_event_hashes=12)

    def serve(self, token_ids: list[int]) -> None:
        hashes = HashChain(IDENTITY, token_ids).hashes
        table = BlockTable(self.pool, BLOCK, self.cache.match(hashes, len(token_ids)))
        try:
            table.ensure(len(token_ids))
            self.cache.insert(hashes, table.block_ids, 0, len(hashes))
        except OutOfBlocks:
            pass  # what it found is given back
        finally:
            table.release()


class FollowingMachine(RuleBasedStateMachine):
    """Workers serve, events are delivered, lost, delivered twice and out of order: whoever catches up knows exactly."""

    def __init__(self) -> None:
        super().__init__()
        self.index = PrefixIndex(1000)
        self.followed = {worker: FollowedWorker() for worker in WORKERS}
        self.late: list[tuple[WorkerId, EventBatch]] = []

    @rule(worker=st.sampled_from(WORKERS), token_ids=prompts)
    def serve(self, worker: WorkerId, token_ids: list[int]) -> None:
        self.followed[worker].serve(token_ids)

    @rule(worker=st.sampled_from(WORKERS))
    def clear(self, worker: WorkerId) -> None:
        self.followed[worker].cache.clear()

    @rule(worker=st.sampled_from(WORKERS), number=st.integers(0, 40), is_late=st.booleans())
    def deliver_some(self, worker: WorkerId, number: int, is_late: bool) -> None:
        batch = self.followed[worker].cache.events.since(number)
        if batch is not None:
            if is_late:
                self.late.append((worker, batch))
            else:
                self.index.apply(worker, batch)

    @rule()
    def deliver_late(self) -> None:
        while self.late:
            self.index.apply(*self.late.pop())

    @rule(worker=st.sampled_from(WORKERS))
    def lose_the_worker(self, worker: WorkerId) -> None:
        self.index.forget(worker)
        assert self.index.next_number(worker) is None

    @rule(worker=st.sampled_from(WORKERS), token_ids=prompts)
    def catch_up(self, worker: WorkerId, token_ids: list[int]) -> None:
        cache, number = self.followed[worker].cache, self.index.next_number(worker)
        batch = None if number is None else cache.events.since(number)
        if batch is None or not self.index.apply(worker, batch):
            self.index.replace(worker, cache.snapshot())
        assert self.index.next_number(worker) == cache.events.next_number
        hashes = HashChain(IDENTITY, token_ids).hashes
        there = set(cache.snapshot().hashes)
        num_there = next((depth for depth, key in enumerate(hashes) if key not in there), len(hashes))
        assert self.index.num_cached(worker, hashes) == num_there

    @invariant()
    def both_views_agree(self) -> None:
        self.index.check_integrity()


FollowingMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=40, deadline=None)
TestFollowingMachine = FollowingMachine.TestCase


@given(
    st.lists(st.tuples(st.sampled_from(WORKERS), st.integers(0, 8), st.integers(0, 30)), max_size=12),
    st.integers(1, 12),
)
def test_the_index_is_bounded_and_never_says_too_much(stored: list[tuple[WorkerId, int, int]], max_hashes: int) -> None:
    """However much is stored it holds no more than its bound, and what it says is there was stored."""
    index = PrefixIndex(max_hashes)
    truth: dict[WorkerId, set[bytes]] = {worker: set() for worker in WORKERS}
    for worker in WORKERS:
        index.replace(worker, PrefixSnapshot(0, ()))
    for worker, length, seed in stored:
        hashes = HashChain(IDENTITY, [0] * BLOCK + [seed] * BLOCK * length).hashes
        truth[worker].update(hashes)
        number = index.next_number(worker)
        assert number is not None
        assert index.apply(worker, EventBatch(number, (BlocksStored(None, tuple(hashes)),)))
        assert len(index) <= max_hashes
        index.check_integrity()
        for one, num_cached in index.num_cached_by_worker(hashes).items():
            assert set(hashes[:num_cached]) <= truth[one]


def test_a_walk_answers_for_all_workers() -> None:
    """Each worker has as much as it has from the first block on; a gap ends it, and who is unknown has nothing."""
    index = PrefixIndex(100)
    for worker, hashes in zip(WORKERS, ((A, B, C, D), (A, B, D), (B, C)), strict=True):
        index.replace(worker, PrefixSnapshot(0, hashes))
    assert index.num_cached_by_worker([A, B, C, D]) == dict(zip(WORKERS[:2], (4, 2), strict=True))
    assert index.num_cached_by_worker([]) == {}
    assert index.num_cached(WorkerId("other", "life"), [A]) == 0
    index.forget(WORKERS[0])
    index.forget(WORKERS[0])
    assert index.num_cached_by_worker([A, B, C, D]) == {WORKERS[1]: 2}
    assert PrefixIndex(1).num_cached_by_worker([A]) == {}


def test_a_missing_event_is_noticed() -> None:
    """Events behind a gap are not taken over, nor are later ones, until there is a snapshot; old ones are ignored."""
    index, worker = PrefixIndex(100), WORKERS[0]
    assert not index.apply(worker, EventBatch(0, (CacheCleared(),)))
    index.replace(worker, PrefixSnapshot(3, (A,)))
    assert index.apply(worker, EventBatch(1, (CacheCleared(), CacheCleared(), BlocksStored(A, (B,)))))
    assert index.apply(worker, EventBatch(0, (CacheCleared(),)))
    assert index.num_cached(worker, [A, B, C]) == 2
    assert not index.apply(worker, EventBatch(5, (BlocksEvicted((B,)),)))
    assert not index.apply(worker, EventBatch(4, (BlocksStored(B, (C,)),)))
    assert index.next_number(worker) is None
    assert index.num_cached(worker, [A, B, C]) == 2
    index.replace(worker, PrefixSnapshot(6, (A, B, C)))
    assert index.apply(worker, EventBatch(6, (BlocksEvicted((C, D)),)))
    assert index.num_cached(worker, [A, B, C]) == 2


def test_what_is_asked_for_stays() -> None:
    """The prompt that nobody asks about goes first, its end before its beginning, and what would follow a block that is gone
    is not taken in.
    """
    index, worker = PrefixIndex(4), WORKERS[0]
    index.replace(worker, PrefixSnapshot(0, ()))
    assert index.apply(worker, EventBatch(0, (BlocksStored(None, (A, B)), BlocksStored(None, (C, D)))))
    assert index.num_cached(worker, [A, B]) == 2
    assert index.apply(worker, EventBatch(2, (BlocksStored(None, (b"e",)),)))
    assert [index.num_cached(worker, hashes) for hashes in ([A, B], [C, D], [b"e"])] == [2, 1, 1]
    assert index.apply(worker, EventBatch(3, (BlocksStored(D, (b"f",)),)))
    assert [index.num_cached(worker, hashes) for hashes in ([C, D], [b"e"], [A, B])] == [1, 1, 2]
    more = tuple(BlocksStored(None, (name,)) for name in (b"g", b"h", b"i"))
    assert index.apply(worker, EventBatch(4, more))
    assert [index.num_cached(worker, hashes) for hashes in ([C, D], [b"e"], [A, B])] == [0, 0, 1]


def test_of_a_snapshot_that_is_too_long_the_beginning_is_kept() -> None:
    """A snapshot names each block behind its predecessor, so that what fits can be found."""
    index = PrefixIndex(2)
    index.replace(WORKERS[0], PrefixSnapshot(0, (A, B, C)))
    assert index.num_cached(WORKERS[0], [A, B, C]) == 2


def test_an_index_has_room() -> None:
    """An index without room is refused."""
    with pytest.raises(ConfigError):
        PrefixIndex(0)
