"""The native codec: every token at tier 0, as the cache holds it, or in the receiver's dtype where that is narrower."""

from __future__ import annotations

from typing import Any

import torch

from protocol.errors import TransferError
from protocol.layout import KvDtype, KvLayout
from transfer.codec.format import NUM_TIERS, ChunkHeader, ChunkIdentity, PayloadSizes, must_equal, native_sizes
from transfer.codec.pool_view import PoolView

TORCH_DTYPES = {
    KvDtype.FLOAT32: torch.float32,
    KvDtype.FLOAT16: torch.float16,
    KvDtype.BFLOAT16: torch.bfloat16,
}

_SAME_WIDTH = {4: torch.int32, 2: torch.int16}


class NativeCodec:
    """Tier 0 only: a map of zeros, no scales, one segment."""

    code = 0

    def header(self, layout: KvLayout, identity: ChunkIdentity) -> ChunkHeader:
        """The header, but for its digest."""
        sizes = native_sizes(layout, identity.wire_dtype, identity.num_tokens)
        counts = (identity.num_tokens, *[0] * (NUM_TIERS - 1))
        return ChunkHeader(identity, self.code, counts, sizes.map_bytes, sizes.scale_bytes, sizes.payload_bytes)

    def encode(self, header: ChunkHeader, source: PoolView, payload: memoryview) -> None:
        """Copies the tokens out of the pool, straight into the slot; on a GPU gathered there and copied once."""
        segment, identity = _segment(header, source, payload), header.identity
        flat = source.flat()
        slots = source.slots(identity.first_token, identity.num_tokens)
        if flat.device.type == "cpu" and flat.dtype == segment.dtype:
            torch.index_select(flat, 1, slots, out=segment)
        else:
            segment.copy_(flat.index_select(1, slots).to(segment.dtype))

    def check(self, layout: KvLayout, header: ChunkHeader) -> None:
        """Raises `BadChunk`, naming the field, unless lengths and counts are what this codec writes."""
        wanted = self.header(layout, header.identity)
        must_equal("tier counts", header.tier_counts, wanted.tier_counts)
        must_equal("map bytes", header.map_bytes, wanted.map_bytes)
        must_equal("scale bytes", header.scale_bytes, wanted.scale_bytes)
        must_equal("payload length", header.payload_bytes, wanted.payload_bytes)

    def check_map(self, header: ChunkHeader, payload: memoryview) -> None:
        """Raises `BadChunk` unless the map puts every token at tier 0."""
        must_equal("precision map", bytes(payload[: header.map_bytes]), bytes(header.map_bytes))

    def decode(self, header: ChunkHeader, payload: memoryview, target: PoolView) -> None:
        """Copies the tokens into the pool; slots of other tokens are not touched."""
        segment, identity = _segment(header, target, payload), header.identity
        flat = target.flat()
        if flat.device.type != "cpu":
            slots = target.slots(identity.first_token, identity.num_tokens)
            flat.index_copy_(1, slots, segment.to(flat.device).to(flat.dtype))
            return
        crossing, cached = _rows(segment, flat)
        for run in target.runs(identity.first_token, identity.num_tokens):
            cached[:, run.slot : run.slot + run.num_tokens] = crossing[:, run.offset : run.offset + run.num_tokens]


def _rows(one: torch.Tensor, other: torch.Tensor) -> tuple[Any, Any]:
    """Both as they are assigned to each other fastest: as plain integers in NumPy, unless their dtypes differ.

    NumPy assigns slices three to four times as fast as torch, whose copy can convert them. To gather, torch's
    `index_select` is faster still; it has no counterpart that scatters as fast.
    """
    if one.dtype != other.dtype:
        return one, other
    bits = _SAME_WIDTH[one.element_size()]
    return one.view(bits).numpy(), other.view(bits).numpy()


def _segment(header: ChunkHeader, view: PoolView, payload: memoryview) -> torch.Tensor:
    """The segment as `[layer * 2, token, kv_head * head_dim]` in the wire dtype, over the slot's own memory."""
    identity = header.identity
    num_layers, two, _, _, num_heads, head_dim = view.pool.shape
    num_elements = num_layers * two * identity.num_tokens * num_heads * head_dim
    segment_bytes = num_elements * identity.wire_dtype.num_bytes
    sizes = PayloadSizes(header.map_bytes, header.scale_bytes, segment_bytes)
    if sizes.payload_bytes != header.payload_bytes:
        raise TransferError(f"a pool of shape {tuple(view.pool.shape)} is not of the layout that the chunk has")
    part = payload[sizes.segments_offset : sizes.segments_offset + segment_bytes]
    return torch.frombuffer(part, dtype=TORCH_DTYPES[identity.wire_dtype]).view(
        num_layers * two, identity.num_tokens, num_heads * head_dim
    )
