"""What has crossed at which precision. Counts only: tensors and tickets are not known here."""

from __future__ import annotations

from transfer.codec.codec import ChunkPlan
from transfer.codec.tiers import NUM_TIERS, TIER_4_BITS, TIER_8_BITS, TIER_16_BITS, TIER_NATIVE

BITS_OF_TIER = {TIER_16_BITS: 16, **{tier: 10 - tier for tier in range(TIER_8_BITS, TIER_4_BITS + 1)}}
OVERHEAD = "overhead"
"""Headers, maps, scales and padding."""


class TierTraffic:
    """Bytes by tier of all chunks counted. One thread counts, any may read."""

    def __init__(self) -> None:
        self._bytes = [0] * NUM_TIERS
        self._overhead_bytes = 0

    def count(self, plan: ChunkPlan) -> None:
        """Adds a chunk: the codes of each tier's tokens, and the rest of its bytes."""
        elements = plan.layout.elements_per_token
        coded = 0
        for tier, num_tokens in enumerate(plan.counts):
            if num_tokens:
                native_bits = 8 * plan.identity.wire_dtype.num_bytes
                num_bytes = num_tokens * elements * BITS_OF_TIER.get(tier, native_bits) // 8
                self._bytes[tier] += num_bytes
                coded += num_bytes
        self._overhead_bytes += plan.sizes.chunk_bytes - coded

    def by_tier(self) -> dict[str, int]:
        """`native`, `16-bit`, `8-bit` to `4-bit` where there were any, and `overhead`."""
        names = {TIER_NATIVE: "native"} | {tier: f"{bits}-bit" for tier, bits in BITS_OF_TIER.items()}
        found = {names[tier]: num_bytes for tier, num_bytes in enumerate(self._bytes) if num_bytes}
        return found | {OVERHEAD: self._overhead_bytes} if self._overhead_bytes else found
