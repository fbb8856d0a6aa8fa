"""The `channel` codec: K on a grid per channel and group of tokens, V per token and head, refined by bit planes.

A token's base is its rounded 4-bit code, whatever its tier; each plane halves the error. Which token gets how many planes
is decided elsewhere, and so is what computes the codes: `operations` chooses. `format` has the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from protocol.layout import KvDtype, KvLayout
from protocol.wire_rule import WireCodec
from transfer.codec.channel_parts import coded_tokens, parts_of
from transfer.codec.codec import ChunkPlan
from transfer.codec.operations import Operations, operations_for
from transfer.codec.payload import Canvas, check_exact, check_finite, check_steps, finish, read_exact, write_exact
from transfer.codec.pool_view import PoolView
from transfer.codec.quantise import MAX_HALF
from transfer.codec.sizes import PayloadSizes, channel_sizes
from transfer.codec.tiers import TIER_4_BITS, TIER_16_BITS


class ChannelCodec:
    """Tiers 1 to 6. `operations` has what computes codes and values on a pool's device."""

    code = 1
    name = WireCodec.CHANNEL
    tiers = frozenset(range(TIER_16_BITS, TIER_4_BITS + 1))

    def __init__(self, operations: Callable[[torch.device], Operations] = operations_for) -> None:
        self._operations = operations

    def sizes(self, layout: KvLayout, dtype: KvDtype, counts: Sequence[int]) -> PayloadSizes:
        """As `channel_sizes`: the dtype that crosses does not matter."""
        return channel_sizes(layout, counts)

    def encode(self, plan: ChunkPlan, source: PoolView, payload: memoryview) -> None:
        """Writes scales and segments. Raises `TransferError` for values that are not finite or do not fit."""
        device = source.pool.device
        canvas = Canvas(payload, device, is_read=False)
        write_exact(plan, source, canvas)
        parts = parts_of(plan, canvas)
        if parts.base.numel():
            limit = MAX_HALF if plan.identity.wire_dtype is KvDtype.FLOAT16 else torch.inf
            self._operations(device).channel.encode(coded_tokens(plan, source), parts, limit)
        finish(plan, canvas)

    def check(self, plan: ChunkPlan, payload: memoryview) -> None:
        """Raises `BadChunk` for parameters and values that are not finite, and for negative steps."""
        canvas = Canvas(payload, torch.device("cpu"), is_read=True)
        parts = parts_of(plan, canvas)
        for grid in (parts.keys, parts.values):
            check_finite("minimum", grid.minimum)
            check_steps("step", grid.step)
        check_exact(plan, canvas)

    def decode(self, plan: ChunkPlan, payload: memoryview, target: PoolView) -> None:
        """Writes all tokens into the pool, each as well as its tier says."""
        device = target.pool.device
        canvas = Canvas(payload, device, is_read=True)
        coded = coded_tokens(plan, target)
        read_exact(plan, target, canvas)
        parts = parts_of(plan, canvas)
        if parts.base.numel():
            self._operations(device).channel.decode(coded, parts)
