"""A prompt read by one engine whose KV then crosses as a transfer's would, and a continuation scored over both copies.

Packed and unpacked are the very chunks of a transfer, from blocks of the cache to other blocks of it, without a transport.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

import torch

from engine.batch import SequenceSlice, StepBatch, TokenImportance
from engine.engine import Engine
from prefill_worker.importance import after_slice, wants_window
from protocol.ids import WorkerId
from protocol.ticket import Ticket
from protocol.wire_rule import WireRule
from quality.measures import WindowScore, compare, log_probabilities
from transfer.arena import Arena
from transfer.codec.budget import sixteen_bit_bytes
from transfer.codec.pool_codec import PoolCodec, slot_bytes_for
from transfer.codec.pool_view import PoolView

WORKER = WorkerId("bench", "0")
Crossing = Callable[[PoolView, PoolView], int]
"""Writes the KV in the first view into the second, and returns the bytes that it took on the way."""


@dataclass(frozen=True, slots=True)
class SplitSizes:
    """`num_context` tokens are read in slices of `num_slice` and cross in slots of `slot_bytes` (or what one block needs);
    `num_continued` are scored.
    """

    num_context: int
    num_continued: int
    num_slice: int
    slot_bytes: int

    @property
    def window_tokens(self) -> int:
        """Tokens of a window: the last one is a target only."""
        return self.num_context + self.num_continued + 1


@dataclass(frozen=True, slots=True)
class ExactWindow:
    """A window whose context lies in the cache, with what the model says after it.

    `seen` has, for each slice of the context, its end and the importance that was known once it had been read.
    """

    request_id: str
    continued: Sequence[int]
    targets: Sequence[int]
    seen: Sequence[tuple[int, TokenImportance]]
    log_probabilities: torch.Tensor

    def importance_of(self, end: int) -> TokenImportance:
        """What a prefill worker knows when it packs a chunk that ends there: as soon as all of its tokens are cached."""
        return next(found for cached, found in self.seen if cached >= end)


class SplitBench:
    """Holds one window at a time: reading the next one takes the place of the last."""

    def __init__(self, engine: Engine, sizes: SplitSizes) -> None:
        self.sizes = sizes
        self._engine = engine
        num_blocks = self.blocks_needed(sizes, engine.layout.block_size)
        blocks = Random(0).sample(range(num_blocks), k=num_blocks)  # scattered, as in a server that has run for a while
        self._exact, self._coded = blocks[: num_blocks // 2], blocks[num_blocks // 2 :]
        self._codec = PoolCodec(engine.cache.pool, engine.layout)
        self._slot = Arena(1, slot_bytes_for(engine.layout, sizes.slot_bytes)).slot(0)

    @staticmethod
    def blocks_needed(sizes: SplitSizes, block_size: int) -> int:
        """Blocks of the cache: both copies."""
        return 2 * -(-(sizes.num_context + sizes.num_continued) // block_size)

    def read(self, name: int, tokens: Sequence[int]) -> ExactWindow:
        """Reads the context of `sizes.window_tokens` tokens, or of fewer that are not all context, and scores what follows
        it over exact KV.
        """
        request_id, importance = f"{name:032x}", None
        seen: list[tuple[int, TokenImportance]] = []
        num_context, num_slice = self.sizes.num_context, self.sizes.num_slice
        for start in range(0, num_context, num_slice):
            end = min(start + num_slice, num_context)
            part = SequenceSlice(request_id, tokens[start:end], start, self._exact, wants_importance=True)
            found = self._engine.step(StepBatch((part,))).importance[request_id]
            importance = after_slice(importance, part, found)
            seen.append((end, importance))
        continued, targets = tokens[num_context:-1], tokens[num_context + 1 :]
        exact = log_probabilities(self._after(continued, self._exact))
        return ExactWindow(request_id, continued, targets, seen, exact)

    def score(self, window: ExactWindow, rule: WireRule) -> WindowScore:
        """The continuation over KV that crossed by a rule. Raises `ConfigError` for a budget out of reach."""
        return self.score_after(window, self.crossing(window, rule))

    def score_after(self, window: ExactWindow, cross: Crossing) -> WindowScore:
        """The continuation over KV that `cross` brought over."""
        coded, wire_bytes = self.continue_after(window, cross)
        half_bytes = sixteen_bit_bytes(self._engine.layout, self.sizes.num_context)
        return compare(window.log_probabilities, coded, window.targets, wire_bytes, half_bytes)

    def continue_after(self, window: ExactWindow, cross: Crossing) -> tuple[torch.Tensor, int]:
        """Log-probabilities `[T, vocab_size]` of what the model says over KV that `cross` brought over, and its bytes."""
        pool = self._engine.cache.pool
        pool[:, :, self._coded] = torch.nan  # what was not written by this crossing must show
        wire_bytes = cross(PoolView(pool, self._exact), PoolView(pool, self._coded))
        return log_probabilities(self._after(window.continued, self._coded)), wire_bytes

    def crossing(self, window: ExactWindow, rule: WireRule) -> Crossing:
        """The window's KV as the chunks of a transfer. The crossing raises `ConfigError` for a budget out of reach and
        `TransferError` for values that the rule's codec cannot write.
        """

        def cross(source: PoolView, target: PoolView) -> int:
            return self._transfer(window, rule, source, target)

        return cross

    def _after(self, continued: Sequence[int], blocks: Sequence[int]) -> torch.Tensor:
        part = SequenceSlice("continuation", continued, self.sizes.num_context, blocks)
        return self._engine.logits(StepBatch((part,)))

    def _transfer(self, window: ExactWindow, rule: WireRule, source: PoolView, target: PoolView) -> int:
        ticket = self._ticket(window.request_id, rule)
        has_window = wants_window(ticket)
        wire_bytes = 0
        for chunk in range(ticket.num_chunks):
            importance = window.importance_of(ticket.token_range(chunk)[1]) if has_window else None
            num_bytes = self._codec.pack(ticket, chunk, source.block_ids, self._slot, importance)
            self._codec.unpack(ticket, chunk, target.block_ids, self._slot[:num_bytes])
            wire_bytes += num_bytes
        return wire_bytes

    def _ticket(self, request_id: str, rule: WireRule) -> Ticket:
        dtype = self._engine.layout.dtype
        return Ticket(
            request_id=request_id,
            prefill_worker=WORKER,
            decode_worker=WORKER,
            generation=1,
            slots=(0,),
            slot_bytes=len(self._slot),
            first_token=0,
            num_tokens=self.sizes.num_context,
            chunk_tokens=self._codec.chunk_tokens(dtype, len(self._slot), rule),
            dtype=dtype,
            lease_s=1.0,
            rule=rule,
        )
