"""The refined code beside plain quantisers of the same layout: what is paid for a code that can be cut off at any bit.

A plain quantiser of n bits has 2^n - 1 steps in its range; the refined one has 15 * 2^(n - 4), so its steps are a little
wider. Groups of K and parameters are the same.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from protocol.layout import KvLayout
from protocol.wire_rule import WireCodec, WireRule
from transfer.arena import PAGE_BYTES, Arena
from transfer.codec.chunk import pack, unpack
from transfer.codec.codec import ChunkPlan
from transfer.codec.format import ChunkIdentity
from transfer.codec.pool_view import PoolView
from transfer.codec.quantise import LEVELS, fit_grid, lowest_and_highest
from transfer.codec.registry import BY_NAME
from transfer.codec.sizes import GROUP_TOKENS, num_groups
from transfer.codec.tiers import TIER_4_BITS, uniform

BITS = (4, 5, 6, 7, 8)
_REQUEST_ID = "7" * 32


class RefinedCrossing:
    """All tokens in one chunk of `channel` at n bits."""

    def __init__(self, layout: KvLayout, num_tokens: int, num_bits: int) -> None:
        identity = ChunkIdentity(
            fingerprint=layout.fingerprint(),
            request_id=_REQUEST_ID,
            generation=1,
            chunk=0,
            first_token=0,
            num_tokens=num_tokens,
            wire_dtype=layout.dtype,
        )
        tiers = uniform(num_tokens, TIER_4_BITS - (num_bits - 4))
        self._plan = ChunkPlan.of(BY_NAME[WireCodec.CHANNEL], layout, identity, tiers)
        self._slot = Arena(1, -(-self._plan.sizes.chunk_bytes // PAGE_BYTES) * PAGE_BYTES).slot(0)

    def __call__(self, source: PoolView, target: PoolView) -> int:
        """Packs and unpacks; the chunk's bytes."""
        num_bytes = pack(self._plan, source, self._slot)
        rule = WireRule(WireCodec.CHANNEL, num_sinks=0)
        unpack(self._plan.layout, self._plan.identity, self._slot[:num_bytes], target, rule)
        return num_bytes


class PlainCrossing:
    """All tokens through a plain quantiser of n bits, which is written down here alone: nothing is packed.

    Its bytes are those of `RefinedCrossing`: as many bits, and the same parameters.
    """

    def __init__(self, layout: KvLayout, num_tokens: int, num_bits: int) -> None:
        self._layout, self._num_tokens, self._num_bits = layout, num_tokens, num_bits

    def __call__(self, source: PoolView, target: PoolView) -> int:
        """Quantises from one view to the other. No bytes are counted."""
        read_from, write_to = source.flat(), target.flat()
        from_slots, to_slots = source.slots(0, self._num_tokens), target.slots(0, self._num_tokens)
        for row in range(2 * self._layout.num_layers):
            values = read_from[row].index_select(0, from_slots).float()
            coded = self._values(values) if row % 2 else self._keys(values)
            write_to[row].index_copy_(0, to_slots, coded.to(write_to.dtype))
        return 0

    def _keys(self, rows: torch.Tensor) -> torch.Tensor:
        parts = [quantised(rows[group], 0, self._num_bits) for group in _groups(self._num_tokens)]
        return torch.cat(parts)

    def _values(self, rows: torch.Tensor) -> torch.Tensor:
        heads = rows.view(len(rows), self._layout.num_kv_heads, self._layout.head_dim)
        return quantised(heads, 2, self._num_bits).flatten(1)


def quantised(values: torch.Tensor, dim: int, num_bits: int) -> torch.Tensor:
    """float32 values rounded to 2^n levels between the extremes over `dim`; minimum and step are float16, as on the wire."""
    lowest, highest = lowest_and_highest(values, dim)
    last_code = 2**num_bits - 1
    grid = fit_grid(lowest, lowest + (highest - lowest) * (LEVELS / last_code))
    minimum, step = grid.minimum.float(), grid.step.float()
    per_step = torch.where(step > 0, 1 / step, 0.0)
    return ((values - minimum) * per_step).round_().clamp_(0, last_code) * step + minimum


def _groups(num_tokens: int) -> Iterator[slice]:
    number = num_groups(num_tokens)
    for index in range(number):
        is_last = index == number - 1
        yield slice(index * GROUP_TOKENS, num_tokens if is_last else (index + 1) * GROUP_TOKENS)
