"""Bytes by precision add up to the chunks', and are those of the tokens at each tier."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.layout import KvDtype, KvLayout
from protocol.wire_rule import WireCodec
from transfer.codec.chunk import native_plan
from transfer.codec.codec import ChunkPlan
from transfer.codec.format import ChunkIdentity
from transfer.codec.registry import BY_NAME
from transfer.codec.traffic import BITS_OF_TIER, OVERHEAD, TierTraffic

LAYOUT = KvLayout("m", num_layers=2, num_kv_heads=2, head_dim=8, dtype=KvDtype.FLOAT32)


def _identity(num_tokens: int) -> ChunkIdentity:
    return ChunkIdentity(LAYOUT.fingerprint(), "7" * 32, 1, 0, 0, num_tokens, LAYOUT.dtype)


@pytest.mark.parametrize("codec", [one for one in WireCodec if one is not WireCodec.NATIVE])
def test_each_tiers_tokens_have_its_bits(codec: WireCodec) -> None:
    """Of chunks with every tier of a codec; the rest is overhead, and nothing is left over."""
    allowed = sorted(BY_NAME[codec].tiers)
    tiers = np.array([allowed[token % len(allowed)] for token in range(70)], dtype=np.uint8)
    plan = ChunkPlan.of(BY_NAME[codec], LAYOUT, _identity(70), tiers)
    traffic = TierTraffic()
    traffic.count(plan)
    traffic.count(plan)
    found = traffic.by_tier()
    assert sum(found.values()) == 2 * plan.sizes.chunk_bytes
    assert found[OVERHEAD] > 0
    for tier in allowed:
        bits = BITS_OF_TIER[tier]
        assert found[f"{bits}-bit"] == 2 * int((tiers == tier).sum()) * LAYOUT.elements_per_token * bits // 8


def test_native_bytes_are_the_caches() -> None:
    """A lossless chunk has its tokens' own bytes, and a header and map besides; nothing crossed has no entries."""
    traffic = TierTraffic()
    assert traffic.by_tier() == {}
    plan = native_plan(LAYOUT, _identity(3))
    traffic.count(plan)
    native = 3 * LAYOUT.elements_per_token * 4
    assert traffic.by_tier() == {"native": native, OVERHEAD: plan.sizes.chunk_bytes - native}
