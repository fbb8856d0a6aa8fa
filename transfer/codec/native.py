"""The native codec: every token at tier 0, as the cache holds it, or in the receiver's dtype where that is narrower."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from protocol.errors import TransferError
from protocol.layout import KvDtype, KvLayout
from protocol.wire_rule import WireCodec
from transfer.codec.codec import ChunkPlan
from transfer.codec.pool_view import PoolView
from transfer.codec.rows import TORCH_DTYPES
from transfer.codec.sizes import PayloadSizes, native_sizes
from transfer.codec.tiers import TIER_NATIVE

_SAME_WIDTH = {4: torch.int32, 2: torch.int16}


class NativeCodec:
    """Tier 0 only: no scales, one segment, no value is looked at."""

    code = 0
    name = WireCodec.NATIVE
    tiers = frozenset({TIER_NATIVE})

    def sizes(self, layout: KvLayout, dtype: KvDtype, counts: Sequence[int]) -> PayloadSizes:
        """As `native_sizes`."""
        return native_sizes(layout, dtype, counts)

    def encode(self, plan: ChunkPlan, source: PoolView, payload: memoryview) -> None:
        """Copies the tokens out of the pool, straight into the slot; on a GPU gathered there and copied once."""
        segment, identity = _segment(plan, source, payload), plan.identity
        flat = source.flat()
        slots = source.slots(identity.first_token, identity.num_tokens)
        if flat.device.type == "cpu" and flat.dtype == segment.dtype:
            torch.index_select(flat, 1, slots, out=segment)
        else:
            segment.copy_(flat.index_select(1, slots).to(segment.dtype))

    def check(self, plan: ChunkPlan, payload: memoryview) -> None:
        """Whatever the cache held is right: there is nothing to check."""

    def decode(self, plan: ChunkPlan, payload: memoryview, target: PoolView) -> None:
        """Copies the tokens into the pool; slots of other tokens are not touched."""
        segment, identity = _segment(plan, target, payload), plan.identity
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


def _segment(plan: ChunkPlan, view: PoolView, payload: memoryview) -> torch.Tensor:
    """The segment as `[layer * 2, token, kv_head * head_dim]` in the wire dtype, over the slot's own memory."""
    identity = plan.identity
    num_layers, two, _, _, num_heads, head_dim = view.pool.shape
    (segment_bytes,) = plan.sizes.segment_sizes
    shape = (num_layers * two, identity.num_tokens, num_heads * head_dim)
    if math.prod(shape) * identity.wire_dtype.num_bytes != segment_bytes:
        raise TransferError(f"a pool of shape {tuple(view.pool.shape)} is not of the layout that the chunk has")
    part = payload[plan.sizes.segments_offset : plan.sizes.segments_offset + segment_bytes]
    return torch.frombuffer(part, dtype=TORCH_DTYPES[identity.wire_dtype]).view(shape)
