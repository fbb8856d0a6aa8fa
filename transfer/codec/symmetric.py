"""Codecs that scale each token and head by its largest value: SpectrumKV's tiers, and the uniform ones beside it.

Source: SpectrumKV (arXiv 2606.08635), whose quantiser this is: symmetric, one scale per token and head, K and V alike,
no zero point. What computes the codes is chosen by `operations`; `format` has the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt
import torch

from protocol.errors import BadChunk
from protocol.layout import KvDtype, KvLayout
from protocol.wire_rule import WireCodec
from transfer.codec.codec import ChunkPlan
from transfer.codec.operations import Operations, operations_for
from transfer.codec.payload import Canvas, check_exact, check_steps, finish, read_exact, segment_offsets, write_exact
from transfer.codec.pool_view import PoolView
from transfer.codec.quantise import MAX_HALF
from transfer.codec.rows import TokenRows
from transfer.codec.sizes import PayloadSizes, row_elements, symmetric_sizes
from transfer.codec.symmetric_parts import Coding, Tier
from transfer.codec.tiers import TIER_4_BITS, TIER_8_BITS, TIER_16_BITS

_E4M3_NAN = 0x7F


class SymmetricCodec:
    """One codec of the family: a code, a name, the tiers it has, and how its bytes are coded, as integers or e4m3."""

    def __init__(
        self,
        code: int,
        name: WireCodec,
        tiers: frozenset[int],
        eight_bits: Coding = Coding.SIGNED_8,
        operations: Callable[[torch.device], Operations] = operations_for,
    ) -> None:
        self.code = code
        self.name = name
        self.tiers = tiers
        self._eight_bits = eight_bits
        self._operations = operations

    def sizes(self, layout: KvLayout, dtype: KvDtype, counts: Sequence[int]) -> PayloadSizes:
        """As `symmetric_sizes`: the dtype that crosses does not matter."""
        return symmetric_sizes(layout, counts)

    def encode(self, plan: ChunkPlan, source: PoolView, payload: memoryview) -> None:
        """Writes scales and segments. Raises `TransferError` for values that are not finite or do not fit."""
        device = source.pool.device
        canvas = Canvas(payload, device, is_read=False)
        write_exact(plan, source, canvas)
        limit = MAX_HALF if plan.identity.wire_dtype is KvDtype.FLOAT16 else torch.inf
        for tier in self._tiers_of(plan, source, canvas):
            self._operations(device).symmetric.encode(tier, limit)
        finish(plan, canvas)

    def check(self, plan: ChunkPlan, payload: memoryview) -> None:
        """Raises `BadChunk` for scales that are not finite or negative, and for values that are not finite."""
        canvas = Canvas(payload, torch.device("cpu"), is_read=True)
        check_steps("scale", _scales(plan, canvas))
        if self._eight_bits is Coding.FLOAT_8 and _has_nan(_segment(plan, canvas, TIER_8_BITS)):
            raise BadChunk("8-bit values: one is not finite")
        check_exact(plan, canvas)

    def decode(self, plan: ChunkPlan, payload: memoryview, target: PoolView) -> None:
        """Writes all tokens into the pool, each as well as its tier says."""
        device = target.pool.device
        canvas = Canvas(payload, device, is_read=True)
        tiers = list(self._tiers_of(plan, target, canvas))
        read_exact(plan, target, canvas)
        for tier in tiers:
            self._operations(device).symmetric.decode(tier)

    def _tiers_of(self, plan: ChunkPlan, view: PoolView, canvas: Canvas) -> Iterator[Tier]:
        """The tiers that have tokens. Raises `TransferError` for a table that does not cover the chunk."""
        coded: npt.NDArray[np.uint8] = plan.tiers[plan.tiers != TIER_16_BITS]
        for tier, coding in ((TIER_8_BITS, self._eight_bits), (TIER_4_BITS, Coding.SIGNED_4)):
            rows = TokenRows(view, plan.identity, np.flatnonzero(plan.tiers == tier))
            if plan.counts[tier]:
                places = np.flatnonzero(coded == tier)
                yield Tier(coding, rows, _scales(plan, canvas), places, _segment(plan, canvas, tier))


def _segment(plan: ChunkPlan, canvas: Canvas, tier: int) -> torch.Tensor:
    """uint8 `[layer, k|v, token, D]`, of 4 bits `[layer, token, D]`."""
    num_layers, rest = plan.layout.num_layers, (plan.counts[tier], row_elements(plan.layout))
    if tier == TIER_4_BITS:
        return canvas.array(segment_offsets(plan)[2], torch.uint8, (num_layers, *rest))
    return canvas.array(segment_offsets(plan)[1], torch.uint8, (num_layers, 2, *rest))


def _scales(plan: ChunkPlan, canvas: Canvas) -> torch.Tensor:
    num_coded = len(plan.tiers) - plan.counts[TIER_16_BITS]
    shape = (plan.layout.num_layers, 2, num_coded, plan.layout.num_kv_heads, 1)
    return canvas.array(plan.sizes.scales_offset, torch.float16, shape)


def _has_nan(codes: torch.Tensor) -> bool:
    """Whether an e4m3fn number is none: it has no infinities."""
    return bool((codes.bitwise_and(_E4M3_NAN) == _E4M3_NAN).any())


SPECTRUM = SymmetricCodec(2, WireCodec.SPECTRUM, frozenset({TIER_16_BITS, TIER_8_BITS, TIER_4_BITS}))
UNIFORM_INT8 = SymmetricCodec(3, WireCodec.UNIFORM_INT8, frozenset({TIER_8_BITS}))
UNIFORM_INT4 = SymmetricCodec(4, WireCodec.UNIFORM_INT4, frozenset({TIER_4_BITS}))
FP8 = SymmetricCodec(5, WireCodec.FP8, frozenset({TIER_8_BITS}), Coding.FLOAT_8)
