"""The blocks of prompts: which of them come from the prefix cache, which are new, and which are kept there once computed.

Of two prompts that begin alike and come at once the second looks again before each step until it starts, and so computes only
what the first has not by then. Both compute what they have in common when one step has room for both: so they are answered
after one step, where the second would otherwise wait for another. Does not know who goes next.
"""

from __future__ import annotations

from collections.abc import Sequence

from engine.batch import SequenceSlice
from engine.block_pool import BlockPool, BlockTable
from engine.prefix_cache.cache import PrefixCache, PrefixPeek
from engine.prefix_cache.policy import PrefixCachePolicy
from prefill_worker.sequence import PrefillSequence
from protocol.errors import OutOfBlocks
from protocol.layout import KvLayout
from protocol.prefix import HashChain, PrefixIdentity
from protocol.request import GenerateRequest


def prefixes_of(pool: BlockPool, layout: KvLayout, policy: PrefixCachePolicy | None) -> PrefixCache | None:
    """The prefix cache of a pool, unless none is wanted."""
    return PrefixCache(pool, layout.block_size, policy) if policy is not None else None


class PromptBlocks:
    """Belongs to the step thread, but for `chain_of`. Without `prefixes` all blocks are new, and none is kept."""

    def __init__(self, pool: BlockPool, layout: KvLayout, prefixes: PrefixCache | None) -> None:
        self._pool = pool
        self._layout = layout
        self._prefixes = prefixes

    def chain_of(self, request: GenerateRequest) -> HashChain | None:
        """The names of a prompt's blocks, None where none are kept. For any thread. Raises `BadRequest` for a token id that
        fits no name.
        """
        if self._prefixes is None:
            return None
        layout = self._layout
        identity = PrefixIdentity(
            layout.model_fingerprint, layout.dtype, layout.block_size, cache_salt=request.cache_salt
        )
        return HashChain(identity, request.prompt_token_ids)

    def num_found_tokens(self, sequence: PrefillSequence) -> int:
        """Tokens that a prompt would not have to compute if it had its blocks now."""
        return self._peek(sequence).num_blocks * self._layout.block_size

    def num_needed(self, sequence: PrefillSequence) -> int:
        """Of the pool's free blocks those that `give` would take."""
        found = self._peek(sequence)
        num_blocks = self._layout.num_blocks_for(sequence.request.num_prompt_tokens)
        return num_blocks - found.num_blocks + found.num_idle

    def give(self, sequence: PrefillSequence) -> None:
        """Blocks for the whole prompt, found ones first. Raises `OutOfBlocks`, and gives none, if there are not enough."""
        found: list[int] = []
        num_reusable = sequence.num_reusable_tokens
        if self._prefixes is not None and num_reusable:
            found = self._prefixes.match(_names(sequence), num_reusable)
        table = BlockTable(self._pool, self._layout.block_size, found)
        try:
            table.ensure(sequence.request.num_prompt_tokens)
        except OutOfBlocks:
            table.release()
            raise
        sequence.table = table
        sequence.begin_at(len(found) * self._layout.block_size)

    def look_again(self, sequence: PrefillSequence) -> bool:
        """A prompt that holds blocks and was not started takes what was cached since, for empty blocks of its own; true if it
        found anything.
        """
        if self._prefixes is None or sequence.table is None or sequence.is_started:
            return False
        start = sequence.num_cached // self._layout.block_size
        if self._peek(sequence).num_blocks <= start:
            return False
        found = self._prefixes.match_more(_names(sequence), sequence.num_reusable_tokens, start)
        own, end = [*sequence.table.block_ids], start + len(found)
        self._pool.share([*own[:start], *own[end:]])
        sequence.table.release()
        sequence.table = BlockTable(self._pool, self._layout.block_size, [*own[:start], *found, *own[end:]])
        sequence.begin_at(end * self._layout.block_size)
        return True

    def keep(self, sequence: PrefillSequence, part: SequenceSlice) -> None:
        """A slice was computed: the blocks that it filled can be found from now on."""
        if self._prefixes is not None and sequence.chain is not None and sequence.table is not None:
            block_size = self._layout.block_size
            self._prefixes.insert(
                sequence.chain.hashes, sequence.table.block_ids, part.start // block_size, part.end // block_size
            )

    def check_integrity(self) -> None:
        """Raises `KvferryError` unless pool and prefix cache are sound."""
        self._pool.check_integrity()
        if self._prefixes is not None:
            self._prefixes.check_integrity()

    def _peek(self, sequence: PrefillSequence) -> PrefixPeek:
        num_reusable = sequence.num_reusable_tokens
        if self._prefixes is None or not num_reusable:
            return PrefixPeek(0, 0)
        return self._prefixes.peek(_names(sequence), num_reusable)


def _names(sequence: PrefillSequence) -> Sequence[bytes]:
    return sequence.chain.hashes if sequence.chain is not None else ()
