"""Codecs that scale each token and head by its largest value: SpectrumKV's tiers, and the uniform ones beside it.

Source: SpectrumKV (arXiv 2606.08635), whose quantiser this is: symmetric, one scale per token and head, K and V alike,
no zero point. `format` has the bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from protocol.errors import BadChunk
from protocol.layout import KvDtype, KvLayout
from protocol.wire_rule import WireCodec
from transfer.codec.bits import join_low_nibbles, split_nibbles
from transfer.codec.codec import ChunkPlan
from transfer.codec.payload import Canvas, check_exact, check_steps, finish, read_exact, segment_offsets, write_exact
from transfer.codec.pool_view import PoolView
from transfer.codec.quantise import (
    MAX_4_BITS,
    MAX_8_BITS,
    MAX_FP8,
    MAX_HALF,
    fit_scale,
    fp8_codes,
    fp8_values,
    largest_magnitude,
    require_within,
    signed_codes,
    signed_values,
)
from transfer.codec.rows import KEY, VALUE, TokenRows, indices, split
from transfer.codec.sizes import PayloadSizes, row_elements, symmetric_sizes
from transfer.codec.tiers import TIER_4_BITS, TIER_8_BITS, TIER_16_BITS

_OFFSET = 8
_E4M3_NAN = 0x7F


_Coding: TypeAlias = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


class _Bytes(NamedTuple):
    """How a value of tier 2 becomes a byte."""

    dtype: torch.dtype
    max_code: float
    codes: _Coding
    values: _Coding


_SIGNED = _Bytes(torch.int8, MAX_8_BITS, signed_codes, signed_values)
_FLOAT = _Bytes(torch.float8_e4m3fn, MAX_FP8, fp8_codes, fp8_values)


class _Tier(NamedTuple):
    """The tokens of tier 2 or 6."""

    rows: TokenRows
    scales: torch.Tensor  # float16 [L, k|v, coded tokens, H, 1]: of all coded tokens
    places: torch.Tensor  # int64: which of those these are

    def scale(self, layers: slice, which: int) -> torch.Tensor:
        """float16 `[layer, token, H, 1]` of these tokens."""
        return self.scales[layers, which].index_select(1, self.places)


class SymmetricCodec:
    """One codec of the family: a code, a name, the tiers it has, and whether its bytes are integers or e4m3."""

    def __init__(self, code: int, name: WireCodec, tiers: frozenset[int], *, is_float: bool = False) -> None:
        self.code = code
        self.name = name
        self.tiers = tiers
        self._bytes = _FLOAT if is_float else _SIGNED

    def sizes(self, layout: KvLayout, dtype: KvDtype, counts: Sequence[int]) -> PayloadSizes:
        """As `symmetric_sizes`: the dtype that crosses does not matter."""
        return symmetric_sizes(layout, counts)

    def encode(self, plan: ChunkPlan, source: PoolView, payload: memoryview) -> None:
        """Writes scales and segments. Raises `TransferError` for values that are not finite or do not fit."""
        canvas = Canvas(payload, source.pool.device, is_read=False)
        write_exact(plan, source, canvas)
        limit = MAX_HALF if plan.identity.wire_dtype is KvDtype.FLOAT16 else torch.inf
        eight, four = (_tier(plan, source, canvas, tier) for tier in (TIER_8_BITS, TIER_4_BITS))
        segment = self._eight_bits(plan, canvas)
        for layers in eight.rows.blocks() if segment.numel() else ():
            for which in (KEY, VALUE):
                heads, scale = _scaled(eight, layers, which, self._bytes.max_code, limit)
                segment[layers, which] = self._bytes.codes(heads, scale).flatten(2)
        packed = _four_bits(plan, canvas)
        for layers in four.rows.blocks() if packed.numel() else ():
            keys, values = (
                signed_codes(*_scaled(four, layers, which, MAX_4_BITS, limit))
                .add_(_OFFSET)
                .view(torch.uint8)
                .flatten(2)
                for which in (KEY, VALUE)
            )
            packed[layers] = join_low_nibbles(keys, values)
        finish(plan, canvas)

    def check(self, plan: ChunkPlan, payload: memoryview) -> None:
        """Raises `BadChunk` for scales that are not finite or negative, and for values that are not finite."""
        canvas = Canvas(payload, torch.device("cpu"), is_read=True)
        check_steps("scale", _scales(plan, canvas))
        if self._bytes is _FLOAT and _has_nan(self._eight_bits(plan, canvas)):
            raise BadChunk("8-bit values: one is not finite")
        check_exact(plan, canvas)

    def decode(self, plan: ChunkPlan, payload: memoryview, target: PoolView) -> None:
        """Writes all tokens into the pool, each as well as its tier says."""
        canvas = Canvas(payload, target.pool.device, is_read=True)
        eight, four = (_tier(plan, target, canvas, tier) for tier in (TIER_8_BITS, TIER_4_BITS))
        read_exact(plan, target, canvas)
        segment = self._eight_bits(plan, canvas)
        for layers in eight.rows.blocks() if segment.numel() else ():
            for which in (KEY, VALUE):
                _put(eight, layers, which, self._bytes.values, segment[layers, which])
        packed = _four_bits(plan, canvas)
        for layers in four.rows.blocks() if packed.numel() else ():
            for which, nibbles in zip((KEY, VALUE), split_nibbles(packed[layers]), strict=True):
                _put(four, layers, which, signed_values, nibbles.view(torch.int8).sub_(_OFFSET))

    def _eight_bits(self, plan: ChunkPlan, canvas: Canvas) -> torch.Tensor:
        shape = (plan.layout.num_layers, 2, _num_tokens(plan, TIER_8_BITS), row_elements(plan.layout))
        return canvas.array(segment_offsets(plan)[1], self._bytes.dtype, shape)


def _four_bits(plan: ChunkPlan, canvas: Canvas) -> torch.Tensor:
    shape = (plan.layout.num_layers, _num_tokens(plan, TIER_4_BITS), row_elements(plan.layout))
    return canvas.array(segment_offsets(plan)[2], torch.uint8, shape)


def _num_tokens(plan: ChunkPlan, tier: int) -> int:
    return int((plan.tiers == tier).sum())


def _scales(plan: ChunkPlan, canvas: Canvas) -> torch.Tensor:
    num_coded = len(plan.tiers) - _num_tokens(plan, TIER_16_BITS)
    shape = (plan.layout.num_layers, 2, num_coded, plan.layout.num_kv_heads, 1)
    return canvas.array(plan.sizes.scales_offset, torch.float16, shape)


def _tier(plan: ChunkPlan, view: PoolView, canvas: Canvas, tier: int) -> _Tier:
    coded: npt.NDArray[np.uint8] = plan.tiers[plan.tiers != TIER_16_BITS]
    rows = TokenRows(view, plan.identity, np.flatnonzero(plan.tiers == tier))
    return _Tier(rows, _scales(plan, canvas), indices(np.flatnonzero(coded == tier), view.pool.device))


def _scaled(tier: _Tier, layers: slice, which: int, max_code: float, limit: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows `[layer, token, H, head_dim]` and the scales that they get, which are stored."""
    heads = split(tier.rows.read(layers, which), 2, tier.scales.shape[3])
    magnitude = largest_magnitude(heads, 3)
    scale = fit_scale(magnitude, max_code)
    if limit < torch.inf:
        require_within(-magnitude, magnitude, limit)
    tier.scales[layers, which].index_copy_(1, tier.places, scale)
    return heads, scale


def _put(tier: _Tier, layers: slice, which: int, values: _Coding, codes: torch.Tensor) -> None:
    scale = tier.scale(layers, which)
    tier.rows.write(layers, which, values(split(codes, 2, scale.shape[2]), scale).flatten(2))


def _has_nan(codes: torch.Tensor) -> bool:
    """Whether an e4m3fn number is none: it has no infinities."""
    return bool((codes.view(torch.uint8).bitwise_and(_E4M3_NAN) == _E4M3_NAN).any())


SPECTRUM = SymmetricCodec(2, WireCodec.SPECTRUM, frozenset({TIER_16_BITS, TIER_8_BITS, TIER_4_BITS}))
UNIFORM_INT8 = SymmetricCodec(3, WireCodec.UNIFORM_INT8, frozenset({TIER_8_BITS}))
UNIFORM_INT4 = SymmetricCodec(4, WireCodec.UNIFORM_INT4, frozenset({TIER_4_BITS}))
FP8 = SymmetricCodec(5, WireCodec.FP8, frozenset({TIER_8_BITS}), is_float=True)
