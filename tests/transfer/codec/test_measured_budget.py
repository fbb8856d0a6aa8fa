"""The budget that is asked for and the one that is measured, for whole prompts of the demo model in slots of real size."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.layout import KvDtype, KvLayout
from protocol.wire_rule import WireCodec, WireRule
from transfer.codec.allocation import allocate
from transfer.codec.budget import TokenSpan, lossy_chunk_tokens, shared_budgets, sixteen_bit_bytes, sizes_of, spans_of
from transfer.codec.chunk import max_tokens_per_slot
from transfer.codec.tiers import tier_counts

DEMO = KvLayout("demo", num_layers=30, num_kv_heads=3, head_dim=64, dtype=KvDtype.FLOAT32)
SLOT_BYTES = 2 * 1024 * 1024


@pytest.mark.parametrize("codec", [WireCodec.CHANNEL, WireCodec.SPECTRUM])
@pytest.mark.parametrize("num_tokens", [256, 300, 512, 777, 1024, 1500])
@pytest.mark.parametrize("budget", [0.3, 0.33, 0.36, 0.4, 0.42, 0.5, 0.6, 0.75, 0.8, 0.9, 0.99])
def test_a_prompts_kv_has_the_bytes_that_were_asked_for(codec: WireCodec, num_tokens: int, budget: float) -> None:
    """Within a hundredth from 256 tokens on, in as many chunks as the prompt needs."""
    rule = WireRule(codec, budget)
    native = max_tokens_per_slot(DEMO, DEMO.dtype, SLOT_BYTES, DEMO.block_size)
    chunk_tokens = lossy_chunk_tokens(DEMO, rule, SLOT_BYTES, native)
    transfer = TokenSpan(0, num_tokens)
    scores = np.random.default_rng(num_tokens).random(num_tokens, dtype=np.float32)
    num_bytes = 0
    for span, limit in zip(
        spans_of(transfer, chunk_tokens), shared_budgets(DEMO, rule, transfer, chunk_tokens), strict=True
    ):
        tiers = allocate(DEMO, rule, span, scores[span.first : span.end], limit)
        num_bytes += sizes_of(DEMO, rule, tier_counts(tiers)).chunk_bytes
    assert num_bytes / sixteen_bit_bytes(DEMO, num_tokens) == pytest.approx(budget, rel=0.01)
