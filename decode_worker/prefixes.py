"""What a decode worker keeps of prompts and answers, and what later ones find of them.

A sequence's KV is named by how it came here. What was computed here, or crossed without loss, is exact; what crossed with loss
is named by the rule under which it did, and so is what is generated on top of it: neither ever serves a request that is to be
exact. When KV is lost and has to be computed here, the sequence's names begin anew as exact ones.

Names are made on the thread that hands a request in; all else happens on the step thread. Does not know who gets blocks when.
"""

from __future__ import annotations

from collections.abc import Iterable

from decode_worker.config import DecodeConfig
from decode_worker.forking import take_tables
from decode_worker.prefix_names import PrefixNames
from decode_worker.sequence import DecodeSequence
from engine.batch import SequenceSlice
from engine.block_pool import BlockPool, BlockTable
from engine.prefix_cache.cache import PrefixCache, PrefixPeek
from protocol.errors import BadRequest, NotConnected
from protocol.ids import WorkerId
from protocol.layout import KvLayout
from protocol.prefix import EXACT, HashChain, PrefixIdentity, wire_precision
from protocol.request import GenerateRequest
from protocol.wire_rule import WireOffer
from transfer.landing import Receiver


class PrefixReuse:
    """The prefix cache of `pool` as sequences use it; without `config.prefix_cache` there is none, and nothing is found."""

    def __init__(self, pool: BlockPool, layout: KvLayout, receiver: Receiver, config: DecodeConfig) -> None:
        self.pool = pool
        self.cache: PrefixCache | None = None
        if config.prefix_cache is not None:
            self.cache = PrefixCache(pool, layout.block_size, config.prefix_cache)
        self._layout = layout
        self._receiver = receiver
        self._offer = WireOffer(receiver.config.rule, config.min_wire_budget)
        self._looked_at = 0

    def names_of(self, request: GenerateRequest, prefill_worker: WorkerId | None = None) -> PrefixNames:
        """The names of a prompt that is read here, or whose KV `prefill_worker` will write. Any thread may call it."""
        if self.cache is None:
            return PrefixNames()
        try:
            precision = EXACT if prefill_worker is None else self._precision_from(prefill_worker, request)
            chain = HashChain(self._identity(request, precision), request.prompt_token_ids)
        except (BadRequest, NotConnected):
            return PrefixNames(is_exact=False)  # admission refuses such a request, and says why
        return PrefixNames(chain, precision == EXACT)

    def num_found_tokens(self, sequence: DecodeSequence) -> int:
        """Tokens whose KV a sequence without blocks would find now."""
        return self._peek(sequence).num_blocks * self._layout.block_size

    def num_saved(self, sequence: DecodeSequence) -> int:
        """Blocks fewer that have to be free for a sequence to start: those that it finds and that others hold as well."""
        peek = self._peek(sequence)
        return peek.num_blocks - peek.num_idle

    def take_tables(self, sequence: DecodeSequence) -> list[BlockTable]:
        """A table for each choice, which begins with what is found: the first `sequence.names.num_kept` blocks, whose KV is
        there. Raises `OutOfBlocks`, and takes none, if there are too few.
        """
        chain = self._chain_to_match(sequence)
        found = [] if self.cache is None or chain is None else self.cache.match(chain.hashes, len(sequence.tokens))
        num_tokens, num_choices = len(sequence.tokens), len(sequence.choices)
        sequence.names.num_kept = 0
        tables = take_tables(self.pool, self._layout.block_size, num_tokens, num_choices, found)
        sequence.names.num_kept = len(found)
        return tables

    def begin(self, sequence: DecodeSequence, tables: list[BlockTable]) -> None:
        """The KV that is not in the tables just taken is computed here, or brought back if it was swapped."""
        sequence.tables = tables
        if sequence.swapped is None:
            sequence.num_cached = sequence.num_cached_at_start = sequence.names.num_kept * self._layout.block_size

    def look_again(self, prefilling: Iterable[DecodeSequence]) -> None:
        """Gives prompts that are about to begin a block what others have computed since, in place of their empty blocks."""
        if self.cache is None or self.cache.events.next_number == self._looked_at:
            return
        self._looked_at = self.cache.events.next_number
        for sequence in prefilling:
            names = sequence.names
            if names.chain is None or sequence.scores is not None:
                continue
            if sequence.num_cached != names.num_kept * self._layout.block_size:
                continue  # it is in the midst of a block
            hashes, num_tokens = names.chain.hashes, len(sequence.tokens)
            if self.cache.peek(hashes, num_tokens).num_blocks > names.num_kept:
                self._adopt(sequence, self.cache.match_more(hashes, num_tokens, names.num_kept))

    def computed(self, sequence: DecodeSequence, part: SequenceSlice) -> None:
        """A step has computed a part of a sequence, whose `num_cached` says so already."""
        sequence.names.computed(part.start)
        self.keep(sequence)

    def keep(self, sequence: DecodeSequence) -> None:
        """Lets later sequences find the full blocks of one: all whose KV is there, and that they do not find yet."""
        names, end = sequence.names, sequence.num_cached // self._layout.block_size
        if self.cache is None or names.chain is None or end <= names.num_kept:
            return
        names.chain.extend(sequence.tokens)
        self.cache.insert(names.chain.hashes, sequence.held_table().block_ids, names.num_kept, end)
        names.num_kept = end

    def check_integrity(self) -> None:
        """Raises `KvferryError` unless pool and cache are sound."""
        if self.cache is None:
            self.pool.check_integrity()
        else:
            self.cache.check_integrity()

    def _peek(self, sequence: DecodeSequence) -> PrefixPeek:
        chain = self._chain_to_match(sequence)
        if self.cache is None or chain is None:
            return PrefixPeek(0, 0)
        return self.cache.peek(chain.hashes, len(sequence.tokens))

    def _chain_to_match(self, sequence: DecodeSequence) -> HashChain | None:
        """The names under which a sequence without blocks may find some. None if it needs the logits of all its prompt, or
        its KV is swapped.
        """
        names = sequence.names
        if self.cache is None or sequence.scores is not None or sequence.swapped is not None:
            return None
        if not names.is_exact and not sequence.wants_ticket:
            names.chain, names.is_exact = HashChain(self._identity(sequence.request, EXACT)), True
        if names.chain is not None:
            names.chain.extend(sequence.tokens)
        return names.chain

    def _adopt(self, sequence: DecodeSequence, found: list[int]) -> None:
        start, is_started = sequence.names.num_kept, sequence.num_cached > sequence.num_cached_at_start
        for table in sequence.tables[1:]:
            self.pool.share(found)
            table.adopt(found, start)
        sequence.held_table().adopt(found, start)
        sequence.names.num_kept = start + len(found)
        sequence.num_cached = sequence.names.num_kept * self._layout.block_size
        if not is_started:
            sequence.num_cached_at_start = sequence.num_cached

    def _precision_from(self, prefill_worker: WorkerId, request: GenerateRequest) -> str:
        rule = self._offer.rule_for(request.kv_wire_budget)
        return wire_precision(rule, self._receiver.dtype_from(prefill_worker), self._layout.dtype)

    def _identity(self, request: GenerateRequest, precision: str) -> PrefixIdentity:
        layout = self._layout
        return PrefixIdentity(
            layout.model_fingerprint,
            layout.dtype,
            layout.block_size,
            wire_precision=precision,
            cache_salt=request.cache_salt,
        )
