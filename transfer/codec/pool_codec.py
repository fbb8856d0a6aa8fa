"""The codec as the two ends of a transfer call it: tickets and block ids in, chunks of this worker's pool out, and back."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from protocol.layout import KvDtype, KvLayout
from protocol.ticket import Ticket
from transfer.arena import PAGE_BYTES
from transfer.codec.chunk import chunk_bytes, max_tokens_per_slot, pack, unpack, verify
from transfer.codec.format import ChunkIdentity
from transfer.codec.pool_view import PoolView


class PoolCodec:
    """Packer and unpacker of one worker's pool `[layer, 2, block, slot, kv_head, head_dim]`.

    Calls come from the thread that pumps the transport. A transfer without block ids is a link test: zeros cross, and are
    verified and not kept.
    """

    def __init__(self, pool: torch.Tensor, layout: KvLayout) -> None:
        self.layout = layout
        self._pool = pool

    def chunk_tokens(self, dtype: KvDtype, slot_bytes: int) -> int:
        """Most tokens of one chunk: whole blocks that fit into a slot. Raises `ConfigError` when not even one does."""
        return max_tokens_per_slot(self.layout, dtype, slot_bytes, self.layout.block_size)

    def pack(self, ticket: Ticket, chunk: int, block_ids: Sequence[int], slot: memoryview) -> int:
        """Packs the chunk into `slot`; its length in bytes. Raises `TransferError` when it does not fit."""
        source = PoolView(self._pool, block_ids) if block_ids else None
        return pack(self.layout, self._identity(ticket, chunk), source, slot)

    def unpack(self, ticket: Ticket, chunk: int, block_ids: Sequence[int], slot: memoryview) -> None:
        """Verifies the chunk that `slot` is exactly, and copies it into the pool. Raises `BadChunk` or `StaleTicket`."""
        if block_ids:
            unpack(self.layout, self._identity(ticket, chunk), slot, PoolView(self._pool, block_ids))
        else:
            verify(self.layout, self._identity(ticket, chunk), slot)

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


def slot_bytes_for(layout: KvLayout, wanted_bytes: int) -> int:
    """Slot size in whole pages: what is wanted, or more where one block of this cache needs more."""
    needed = max(wanted_bytes, chunk_bytes(layout, layout.dtype, layout.block_size))
    return -(-needed // PAGE_BYTES) * PAGE_BYTES
