"""Chunks under a target, and only where a target is set and something decodes."""

from __future__ import annotations

from dataclasses import replace

from decode_worker.config import DecodeConfig
from decode_worker.pacing import Pacing
from engine.batch import SequenceSlice, StepBatch
from tests.decode_worker.sequences import sequence

CONFIG = DecodeConfig(max_step_tokens=256, max_sequences=8)


def _learned(config: DecodeConfig, num_steps: int = 40) -> Pacing:
    """Steps of 10 ms, and 1 ms for each token."""
    pacing = Pacing(config)
    for number in range(num_steps):
        num_tokens = 1 + 37 * number % 200
        part = SequenceSlice("one", [5] * num_tokens, 0, list(range(20)))
        pacing.learn(StepBatch((part,)), 0.010 + 0.001 * num_tokens)
    return pacing


def test_prompts_are_bounded_beside_decodes_only() -> None:
    """A step without a target, without decodes or without prompts has its usual bounds."""
    decoding, prefilling = [sequence("a", 20, 1, num_generated=1)], [sequence("b", 90, 2)]
    pacing = _learned(replace(CONFIG, itl_target_s=0.1))
    limits = pacing.limits(decoding, prefilling)
    assert limits.max_prefill_tokens is not None
    assert 75 <= limits.max_prefill_tokens <= 100  # 0.1 s less those of the step and of one decode: 89
    assert (limits.max_step_tokens, limits.max_sequences) == (256, 8)
    assert pacing.limits([], prefilling).max_prefill_tokens is None
    assert pacing.limits(decoding, []).max_prefill_tokens is None
    assert _learned(CONFIG).limits(decoding, prefilling).max_prefill_tokens is None


def test_what_computing_again_takes() -> None:
    """More for more tokens, and near to what steps took."""
    pacing = _learned(replace(CONFIG, swap_bytes=1))
    assert 0.08 < pacing.recompute_s(100) < 0.14
    assert pacing.recompute_s(200) > pacing.recompute_s(100)
