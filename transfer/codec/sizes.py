"""How many bytes the parts of a payload have, from the number of tokens at each tier alone. Pure integers: no tensors here.

The sums are those of `format`; that what is written has these sizes is what the codecs' tests show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.layout import KvDtype, KvLayout
from transfer.codec.format import HEADER_BYTES
from transfer.codec.tiers import NUM_PLANES, TIER_4_BITS, TIER_8_BITS, TIER_16_BITS

ALIGNMENT_BYTES = 64
GROUP_TOKENS = 64
_HALF_BYTES = 2


@dataclass(frozen=True, slots=True)
class PayloadSizes:
    """Unpadded bytes of the parts of a payload. Every part starts at a multiple of `ALIGNMENT_BYTES`."""

    map_bytes: int
    scale_bytes: int
    segment_sizes: tuple[int, ...]

    @property
    def scales_offset(self) -> int:
        """Where the scales begin, from the start of the payload."""
        return padded(self.map_bytes)

    @property
    def segments_offset(self) -> int:
        """Where the segments begin, from the start of the payload."""
        return self.scales_offset + padded(self.scale_bytes)

    @property
    def payload_bytes(self) -> int:
        """The whole payload with its padding."""
        return self.segments_offset + sum(padded(size) for size in self.segment_sizes)

    @property
    def chunk_bytes(self) -> int:
        """Header and payload: what crosses."""
        return HEADER_BYTES + self.payload_bytes


def padded(num_bytes: int) -> int:
    """The next multiple of `ALIGNMENT_BYTES`."""
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def num_groups(num_tokens: int) -> int:
    """Groups of K's parameters for tokens that are coded together: none for none, else at least one."""
    return max(1, (num_tokens + GROUP_TOKENS // 2) // GROUP_TOKENS) if num_tokens else 0


def plane_bytes(layout: KvLayout, num_tokens: int) -> int:
    """One bit of K and of V for each element of `num_tokens` tokens; whole bytes in each layer."""
    return layout.num_layers * -(-num_tokens * row_elements(layout) // 4)


def row_elements(layout: KvLayout) -> int:
    """Elements of K, or of V, of one token in one layer."""
    return layout.num_kv_heads * layout.head_dim


def native_sizes(layout: KvLayout, dtype: KvDtype, counts: Sequence[int]) -> PayloadSizes:
    """All tokens at tier 0."""
    num_tokens = sum(counts)
    return PayloadSizes(_map_bytes(num_tokens), 0, (num_tokens * layout.elements_per_token * dtype.num_bytes,))


def channel_sizes(layout: KvLayout, counts: Sequence[int]) -> PayloadSizes:
    """Tiers 1 to 6: sixteen bits, base, four planes."""
    num_exact, num_tokens = counts[TIER_16_BITS], sum(counts)
    num_coded = num_tokens - num_exact
    keys = num_groups(num_coded) * row_elements(layout)
    values = num_coded * layout.num_kv_heads
    scales = 2 * layout.num_layers * (keys + values) * _HALF_BYTES
    base = layout.num_layers * num_coded * row_elements(layout)
    planes = [plane_bytes(layout, num) for num in plane_counts(counts)]
    return PayloadSizes(_map_bytes(num_tokens), scales, (_exact_bytes(layout, num_exact), base, *planes))


def symmetric_sizes(layout: KvLayout, counts: Sequence[int]) -> PayloadSizes:
    """Tiers 1, 2 and 6 of the codecs that scale each token and head by its largest value."""
    num_exact, num_tokens = counts[TIER_16_BITS], sum(counts)
    scales = 2 * layout.num_layers * (num_tokens - num_exact) * layout.num_kv_heads * _HALF_BYTES
    segments = (
        _exact_bytes(layout, num_exact),
        counts[TIER_8_BITS] * layout.elements_per_token,
        counts[TIER_4_BITS] * layout.elements_per_token // 2,
    )
    return PayloadSizes(_map_bytes(num_tokens), scales, segments)


def plane_counts(counts: Sequence[int]) -> list[int]:
    """Tokens that have plane 1, 2, 3 and 4: those at 4 + p bits or more."""
    return [sum(counts[TIER_8_BITS : TIER_4_BITS - plane + 1]) for plane in range(1, NUM_PLANES + 1)]


def _map_bytes(num_tokens: int) -> int:
    return -(-num_tokens // 2)


def _exact_bytes(layout: KvLayout, num_tokens: int) -> int:
    return num_tokens * layout.elements_per_token * _HALF_BYTES
