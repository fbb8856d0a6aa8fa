"""Full blocks of KV by name, kept in the block pool after their sequences have ended, until there is need of room.

Only full blocks are kept, and none is written to again: where two sequences part, each goes on in a block of its own. What is
computed or landed comes here once it is complete and verified, which is the caller's word. Of two sequences that compute the
same block at once the first to be done has it kept; the other's stays its own and goes with it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, field

from engine.block_pool import BlockPool
from engine.prefix_cache.events import DEFAULT_MAX_HASHES, EventLog
from engine.prefix_cache.policy import POLICIES, PrefixCachePolicy
from protocol.errors import IllegalMove, KvferryError
from protocol.prefix import max_reused_blocks
from protocol.prefix_events import BlocksEvicted, BlocksStored, CacheCleared, PrefixSnapshot


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


@dataclass(slots=True)
class _Node:
    block_id: int
    parent: bytes | None
    children: set[bytes] = field(default_factory=set)


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
        self._nodes: dict[bytes, _Node] = {}
        self._hash_of: dict[int, bytes] = {}
        pool.set_keeper(self)

    @property
    def num_blocks(self) -> int:
        """Blocks that can be found."""
        return len(self._nodes)

    def peek(self, hashes: Sequence[bytes], num_tokens: int) -> PrefixPeek:
        """What `match` would find. Changes nothing, counts nothing."""
        num_blocks = self._num_found(hashes, num_tokens)
        nodes = self._nodes
        return PrefixPeek(num_blocks, self._pool.num_only_kept([nodes[key].block_id for key in hashes[:num_blocks]]))

    def match(self, hashes: Sequence[bytes], num_tokens: int) -> list[int]:
        """The blocks that a prompt of `num_tokens` with these names begins with, each with a holder more: the caller, who
        releases them to the pool. At least one token is left to be computed.
        """
        num_blocks = self._num_found(hashes, num_tokens)
        self.counters.num_queries += 1
        self.counters.num_query_tokens += num_tokens
        self.counters.num_missed_blocks += max_reused_blocks(num_tokens, self._block_size) - num_blocks
        return self._hold(hashes[:num_blocks])

    def match_more(self, hashes: Sequence[bytes], num_tokens: int, num_held: int) -> list[int]:
        """What has been cached since `match` was asked for the same prompt, which has its first `num_held` blocks: those that
        follow them, as `match` gives them. They count as found; that they were missed before stays counted.
        """
        return self._hold(hashes[num_held : self._num_found(hashes, num_tokens)])

    def insert(self, hashes: Sequence[bytes], block_ids: Sequence[int], start: int, end: int) -> int:
        """Keeps blocks `start .. end - 1` of a sequence that holds `block_ids` with these names; how many were new.

        They are complete, and stay as they are. Blocks before `start` that are not kept any more are kept again, since the
        others could not be found without them. Raises `IllegalMove`, and keeps nothing, if there are fewer blocks or names.
        """
        if not 0 <= start <= end <= min(len(hashes), len(block_ids)):
            raise IllegalMove(f"there are no blocks {start} to {end} of {len(block_ids)} with {len(hashes)} names")
        while start and hashes[start - 1] not in self._nodes:
            start -= 1
        while start < end and hashes[start] in self._nodes:
            start += 1
        if start == end:
            return 0
        keys, blocks = tuple(hashes[start:end]), block_ids[start:end]
        self._pool.keep(blocks)
        parent = first_parent = hashes[start - 1] if start else None
        for key, block in zip(keys, blocks, strict=True):
            self._nodes[key] = _Node(block, parent)
            self._hash_of[block] = key
            if parent is not None:
                self._nodes[parent].children.add(key)
            parent = key
        self._policy.insert(keys)
        self.counters.num_stored_blocks += len(keys)
        self.events.append(BlocksStored(first_parent, keys))
        return len(keys)

    def snapshot(self) -> PrefixSnapshot:
        """All names that can be found now, for a reader of `events` that lost some."""
        return PrefixSnapshot(self.events.next_number, tuple(self._nodes))

    def clear(self) -> None:
        """Keeps nothing any more. Blocks that sequences hold stay theirs."""
        self._pool.unkeep([node.block_id for node in self._nodes.values()])
        self._nodes.clear()
        self._hash_of.clear()
        self._policy.clear()
        self.events.append(CacheCleared())

    def on_held(self, block_ids: Sequence[int]) -> None:
        """The pool says that somebody else holds these again: a prompt that has found them, since nobody else knows of them."""
        self._policy.hold([*map(self._hash_of.__getitem__, block_ids)])

    def on_left(self, block_ids: Sequence[int]) -> None:
        """The pool says that nobody else holds these any more. Tables name the first block first, and it should go last."""
        self._policy.let_go(map(self._hash_of.__getitem__, reversed(block_ids)))

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
        if {node.block_id: key for key, node in self._nodes.items()} != self._hash_of:
            raise KvferryError("names and blocks of the prefix cache differ")
        for key, node in self._nodes.items():
            if node.parent is not None and key not in self._nodes[node.parent].children:
                raise KvferryError(f"cached block {node.block_id} cannot be found from its predecessor")
            if any(self._nodes[child].parent != key for child in node.children):
                raise KvferryError(f"a successor of cached block {node.block_id} has another predecessor")
        idle = {key for key, node in self._nodes.items() if self._pool.num_holders(node.block_id) == 1}
        if idle != self._policy.idle_keys() or len(idle) != self._pool.num_kept_idle:
            raise KvferryError(
                f"{len(idle)} cached blocks are idle, {len(self._policy.idle_keys())} to the policy and "
                f"{self._pool.num_kept_idle} to the pool"
            )

    def _hold(self, found: Sequence[bytes]) -> list[int]:
        nodes = self._nodes
        blocks = [nodes[key].block_id for key in found]
        if self._pool.hold_kept(blocks) < len(blocks):
            self._policy.touch(found)  # of those among them that somebody held it was not told
        self.counters.num_hit_tokens += len(blocks) * self._block_size
        self.counters.num_hit_blocks += len(blocks)
        return blocks

    def _num_found(self, hashes: Sequence[bytes], num_tokens: int) -> int:
        # What is kept has all its predecessors, so that the border can be found by halving.
        limit = min(len(hashes), max_reused_blocks(num_tokens, self._block_size))
        nodes = self._nodes
        return bisect_left(range(limit), True, key=lambda index: hashes[index] not in nodes)

    def _evict_from_leaves(self, victim: bytes, num_wanted: int, evicted: dict[bytes, int]) -> int:
        """Lets `victim` and what follows it go, leaves first, until `num_wanted` blocks are idle no more; how many are.

        They are added to `evicted` with their blocks, to be given back together. Among them may be blocks that are held: by
        sequences that computed the predecessors themselves, in blocks of their own.
        """
        path, num_freed = [victim], 0
        while path and num_freed < num_wanted:
            children = self._nodes[path[-1]].children
            if children:
                path.append(next(iter(children)))
                continue
            key = path.pop()
            node = self._nodes.pop(key)
            if node.parent is not None:
                self._nodes[node.parent].children.discard(key)
            del self._hash_of[node.block_id]
            evicted[key] = node.block_id
            if self._pool.num_holders(node.block_id) == 1:
                self._policy.evict(key)
                num_freed += 1
            else:
                self._policy.forget(key)
        return num_freed
