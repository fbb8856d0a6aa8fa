"""The codec as the two ends of a transfer call it: tickets and block ids in, chunks of this worker's pool out, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from protocol.layout import KvDtype, KvLayout
from protocol.ticket import Ticket
from protocol.wire_rule import LOSSLESS, Importance, WireRule
from transfer.arena import PAGE_BYTES
from transfer.codec.allocation import Scores, allocate
from transfer.codec.budget import TokenSpan, lossy_chunk_tokens, only_tier, shared_budgets
from transfer.codec.chunk import chunk_bytes, max_tokens_per_slot, native_plan, pack, unpack, verify
from transfer.codec.codec import ChunkPlan
from transfer.codec.format import ChunkIdentity
from transfer.codec.importance import given_scores, key_norms, scores_without_view
from transfer.codec.operations import operations_for
from transfer.codec.pool_view import PoolView
from transfer.codec.registry import BY_NAME
from transfer.codec.traffic import TierTraffic


class PoolCodec:
    """Packer and unpacker of one worker's pool `[layer, 2, block, slot, kv_head, head_dim]`.

    Calls come from the thread that pumps the transport. A transfer without block ids is a link test: zeros cross, and are
    verified and not kept.
    """

    def __init__(self, pool: torch.Tensor, layout: KvLayout) -> None:
        self.layout = layout
        operations_for(pool.device)  # what the environment asks for and cannot be had shows now, not at the first chunk
        self._traffic = TierTraffic()
        self._pool = pool

    def chunk_tokens(self, dtype: KvDtype, slot_bytes: int, rule: WireRule = LOSSLESS) -> int:
        """Most tokens of one chunk: whole blocks that fit into a slot as the rule writes them, native ones without a rule.

        Raises `ConfigError` when not even one block does.
        """
        native = max_tokens_per_slot(self.layout, dtype, slot_bytes, self.layout.block_size)
        return native if rule.is_lossless else lossy_chunk_tokens(self.layout, rule, slot_bytes, native)

    def pack(
        self,
        ticket: Ticket,
        chunk: int,
        block_ids: Sequence[int],
        slot: memoryview,
        importance: Sequence[float] | Scores | None = None,
    ) -> int:
        """Packs the chunk into `slot` by the ticket's rule; its length in bytes.

        `importance` has one score a token of the prompt, from token 0 to at least the chunk's end; without it the rule's
        own kind is computed here, positional standing in for the window. Raises `TransferError` when the chunk does not fit
        or its values cannot be sent, `ConfigError` for a budget that no prompt can keep to.
        """
        source = PoolView(self._pool, block_ids) if block_ids else None
        plan = self._plan(ticket, chunk, source, importance)
        num_bytes = pack(plan, source, slot)
        if block_ids:
            self._traffic.count(plan)
        return num_bytes

    def unpack(self, ticket: Ticket, chunk: int, block_ids: Sequence[int], slot: memoryview) -> None:
        """Verifies the chunk that `slot` is exactly, and copies it into the pool. Raises `BadChunk` or `StaleTicket`."""
        if block_ids:
            target = PoolView(self._pool, block_ids)
            self._traffic.count(unpack(self.layout, self._identity(ticket, chunk), slot, target, ticket.rule))
        else:
            verify(self.layout, self._identity(ticket, chunk), slot, ticket.rule)

    def bytes_by_tier(self) -> dict[str, int]:
        """Bytes packed and unpacked so far, but for link tests, as `TierTraffic.by_tier`."""
        return self._traffic.by_tier()

    def _plan(
        self, ticket: Ticket, chunk: int, source: PoolView | None, importance: Sequence[float] | Scores | None
    ) -> ChunkPlan:
        identity, rule = self._identity(ticket, chunk), ticket.rule
        if rule.is_lossless:
            return native_plan(self.layout, identity)
        transfer, span = TokenSpan(ticket.first_token, ticket.num_tokens), TokenSpan(*ticket.token_range(chunk))
        max_bytes = shared_budgets(self.layout, rule, transfer, ticket.chunk_tokens)[chunk]
        scores = _scores(ticket, span, source, importance)
        tiers = allocate(self.layout, rule, span, scores, max_bytes)
        return ChunkPlan.of(BY_NAME[rule.codec], self.layout, identity, tiers)

    def _identity(self, ticket: Ticket, chunk: int) -> ChunkIdentity:
        first, end = ticket.token_range(chunk)
        return ChunkIdentity(
            fingerprint=self.layout.fingerprint(),
            request_id=ticket.request_id,
            generation=ticket.generation,
            chunk=chunk,
            first_token=first,
            num_tokens=end - first,
            wire_dtype=ticket.dtype,
        )


def _scores(
    ticket: Ticket, span: TokenSpan, source: PoolView | None, importance: Sequence[float] | Scores | None
) -> Scores:
    if importance is not None:
        return given_scores(importance, span)
    is_by_norm = ticket.rule.importance is Importance.KEY_NORM and only_tier(ticket.rule) is None
    if is_by_norm and source is not None:
        return key_norms(source, span)
    return scores_without_view(ticket.rule.importance, ticket.request_id, ticket.num_tokens, span)


def slot_bytes_for(layout: KvLayout, wanted_bytes: int) -> int:
    """Slot size in whole pages: what is wanted, or more where one block of this cache needs more."""
    needed = max(wanted_bytes, chunk_bytes(layout, layout.dtype, layout.block_size))
    return -(-needed // PAGE_BYTES) * PAGE_BYTES
