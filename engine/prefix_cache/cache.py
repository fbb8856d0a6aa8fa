"""Full blocks of KV by name, kept in the block pool after their sequences have ended, until there is need of room.

Only full blocks are kept, and none is written to again: where two sequences part, each goes on in a block of its own. What is
computed or landed comes here once it is complete and verified, which is the caller's word. Of two sequences that compute the
same block at once the first to be done has it kept; the other's stays its own and goes with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from engine.block_pool import BlockIds, BlockPool
from engine.prefix_cache.events import DEFAULT_MAX_HASHES, EventLog
from engine.prefix_cache.policy import POLICIES, PrefixCachePolicy
from engine.prefix_cache.tree import NONE, BlockTree
from protocol.errors import IllegalMove, KvferryError
from protocol.prefix import max_reused_blocks
from protocol.prefix_events import BlocksEvicted, BlocksStored, CacheCleared, PrefixSnapshot

NO_NAME = b""
"""Of a block that is not cached."""


@dataclass(slots=True)
class PrefixCounters:
    """Since the start. Prompts that asked, their tokens and those of them that were found; blocks found, missed among those
    that might have been there, stored, and evicted.
    """

    num_queries: int = 0
    num_query_tokens: int = 0
    num_hit_tokens: int = 0
    num_hit_blocks: int = 0
    num_missed_blocks: int = 0
    num_stored_blocks: int = 0
    num_evicted_blocks: int = 0


@dataclass(frozen=True, slots=True)
class PrefixPeek:
    """What a prompt would find: so many blocks, of which `num_idle` are free to be given out and will not be once it has them.

    A prompt of `n` blocks needs room for `n - num_blocks + num_idle`.
    """

    num_blocks: int
    num_idle: int


class PrefixCache:
    """Keeps blocks of `pool`, whose keeper it becomes. One thread uses both.

    A block's predecessor in the chain is kept as long as it is: what is kept can be found.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        policy: PrefixCachePolicy = PrefixCachePolicy.ARC,
        max_event_hashes: int = DEFAULT_MAX_HASHES,
    ) -> None:
        self.counters = PrefixCounters()
        self.events = EventLog(max_event_hashes)
        self._pool = pool
        self._block_size = block_size
        self._policy = POLICIES[policy](pool.num_blocks)
        self._block_of: dict[bytes, int] = {}
        self._name_of = [NO_NAME] * pool.num_blocks
        self._tree = BlockTree(pool.num_blocks)
        self._last_hashes: Sequence[bytes] = ()
        self._last_key = (0, 0, 0)
        self._last_found = np.empty(0, np.intp)
        pool.set_keeper(self)

    @property
    def num_blocks(self) -> int:
        """Blocks that can be found."""
        return len(self._block_of)

    def peek(self, hashes: Sequence[bytes], num_tokens: int) -> PrefixPeek:
        """What `match` would find. Changes nothing, counts nothing."""
        blocks = self._find(hashes, num_tokens)
        return PrefixPeek(len(blocks), self._pool.num_only_kept(blocks))

    def match(self, hashes: Sequence[bytes], num_tokens: int) -> list[int]:
        """The blocks that a prompt of `num_tokens` with these names begins with, each with a holder more: the caller, who
        releases them to the pool. At least one token is left to be computed.
        """
        blocks = self._find(hashes, num_tokens)
        self.counters.num_queries += 1
        self.counters.num_query_tokens += num_tokens
        self.counters.num_missed_blocks += max_reused_blocks(num_tokens, self._block_size) - len(blocks)
        return self._hold(blocks)

    def match_more(self, hashes: Sequence[bytes], num_tokens: int, num_held: int) -> list[int]:
        """What has been cached since `match` was asked for the same prompt, which has its first `num_held` blocks: those that
        follow them, as `match` gives them. They count as found; that they were missed before stays counted.
        """
        return self._hold(self._find(hashes, num_tokens)[num_held:])

    def insert(self, hashes: Sequence[bytes], block_ids: Sequence[int], start: int, end: int) -> int:
        """Keeps blocks `start .. end - 1` of a sequence that holds `block_ids` with these names; how many were new.

        They are complete, and stay as they are. Blocks before `start` that are not kept any more are kept again, since the
        others could not be found without them. Raises `IllegalMove`, and keeps nothing, if there are fewer blocks or names.
        """
        if not 0 <= start <= end <= min(len(hashes), len(block_ids)):
            raise IllegalMove(f"there are no blocks {start} to {end} of {len(block_ids)} with {len(hashes)} names")
        while start and hashes[start - 1] not in self._block_of:
            start -= 1
        while start < end and hashes[start] in self._block_of:
            start += 1
        if start == end:
            return 0
        names, blocks = tuple(hashes[start:end]), block_ids[start:end]
        self._pool.keep(blocks)
        first_parent = hashes[start - 1] if start else None
        parent = self._block_of[first_parent] if first_parent is not None else NONE
        for name, block in zip(names, blocks, strict=True):
            self._block_of[name] = block
            self._name_of[block] = name
            self._tree.add(block, parent)
            parent = block
        self._policy.insert(np.array(blocks), names)
        self.counters.num_stored_blocks += len(names)
        self.events.append(BlocksStored(first_parent, names))
        return len(names)

    def snapshot(self) -> PrefixSnapshot:
        """All names that can be found now, for a reader of `events` that lost some."""
        return PrefixSnapshot(self.events.next_number, tuple(self._block_of))

    def clear(self) -> None:
        """Keeps nothing any more. Blocks that sequences hold stay theirs."""
        self._pool.unkeep([*self._block_of.values()])
        self._block_of.clear()
        self._name_of = [NO_NAME] * self._pool.num_blocks
        self._tree.clear()
        self._policy.clear()
        self.events.append(CacheCleared())

    def on_held(self, block_ids: BlockIds) -> None:
        """The pool says that somebody else holds these again: a prompt that has found them, since nobody else knows of them."""
        self._policy.hold(block_ids)

    def on_left(self, block_ids: BlockIds) -> None:
        """The pool says that nobody else holds these any more. Tables name the first block first, and it should go last."""
        self._policy.let_go(block_ids[::-1])

    def make_room(self, num_blocks: int) -> None:
        """Gives `num_blocks` back that nobody else holds. Raises `KvferryError` if there are fewer, which the pool knows."""
        evicted: dict[bytes, int] = {}
        num_freed = 0
        while num_freed < num_blocks:
            victim = self._policy.victim()
            if victim is None:
                raise KvferryError(f"{num_blocks} cached blocks should be evicted, {num_freed} could be")
            num_freed += self._evict_from_leaves(victim, num_blocks - num_freed, evicted)
        self._pool.unkeep([*evicted.values()])
        self.counters.num_evicted_blocks += len(evicted)
        self.events.append(BlocksEvicted(tuple(evicted)))

    def check_integrity(self) -> None:
        """Raises `KvferryError` unless every kept block can be found, and pool and policy know it as the cache does."""
        self._pool.check_integrity()
        kept = {block: name for name, block in self._block_of.items()}
        if kept != {block: name for block, name in enumerate(self._name_of) if name != NO_NAME}:
            raise KvferryError("names and blocks of the prefix cache differ")
        for block in kept:
            parent = self._tree.parent(block)
            if parent != NONE and (parent not in kept or block not in self._tree.children(parent)):
                raise KvferryError(f"cached block {block} cannot be found from its predecessor")
            if any(child not in kept or self._tree.parent(child) != block for child in self._tree.children(block)):
                raise KvferryError(f"a successor of cached block {block} has another predecessor")
        idle = {block for block in kept if self._pool.num_holders(block) == 1}
        if idle != self._policy.idle_blocks() or len(idle) != self._pool.num_kept_idle:
            raise KvferryError(
                f"{len(idle)} cached blocks are idle, {len(self._policy.idle_blocks())} to the policy and "
                f"{self._pool.num_kept_idle} to the pool"
            )

    def _find(self, hashes: Sequence[bytes], num_tokens: int) -> BlockIds:
        # A prompt is asked for several times before it starts: what was found last is found again while nothing has changed.
        key = (self.events.next_number, len(hashes), num_tokens)
        if hashes is not self._last_hashes or key != self._last_key:
            # What is kept has all its predecessors, so that the border can be found by halving.
            block_of = self._block_of
            limit = min(len(hashes), max_reused_blocks(num_tokens, self._block_size))
            num_found = bisect_left(range(limit), True, key=lambda index: hashes[index] not in block_of)
            self._last_found = np.fromiter(map(block_of.__getitem__, hashes[:num_found]), np.intp, num_found)
            self._last_hashes, self._last_key = hashes, key
        return self._last_found

    def _hold(self, blocks: BlockIds) -> list[int]:
        if not len(blocks):
            return []
        if self._pool.hold_kept(blocks) < len(blocks):
            self._policy.touch(blocks)  # of those among them that somebody held it was not told
        self.counters.num_hit_tokens += len(blocks) * self._block_size
        self.counters.num_hit_blocks += len(blocks)
        held: list[int] = blocks.tolist()
        return held

    def _evict_from_leaves(self, victim: int, num_wanted: int, evicted: dict[bytes, int]) -> int:
        """Lets `victim` and what follows it go, leaves first, until `num_wanted` blocks are idle no more; how many are.

        They are added to `evicted` with their names, to be given back together. Among them may be blocks that are held: by
        sequences that computed the predecessors themselves, in blocks of their own.
        """
        block, num_freed = victim, 0
        while num_freed < num_wanted:
            child = self._tree.child(block)
            if child != NONE:
                block = child
                continue
            parent = self._tree.parent(block)
            self._tree.remove_leaf(block)
            num_freed += self._evict(block, evicted)
            if block == victim:
                break
            block = parent
        return num_freed

    def _evict(self, block: int, evicted: dict[bytes, int]) -> bool:
        """A leaf goes; whether it was idle."""
        name, self._name_of[block] = self._name_of[block], NO_NAME
        del self._block_of[name]
        evicted[name] = block
        if self._pool.num_holders(block) == 1:
            self._policy.evict(block, name)
            return True
        self._policy.forget(block)
        return False
