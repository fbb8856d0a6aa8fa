"""How much of prompts a step reads beside its decodes, and what computing KV again would take: by the steps there were.

Does not know how steps are run; the worker tells what each took.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from decode_worker.config import DecodeConfig
from decode_worker.sequence import DecodeSequence
from engine.batch import StepBatch
from scheduling.budget import StepLimits
from scheduling.chunk_size import StepTimes, StepWork, attended


class Pacing:
    """Learns the times of steps, where the target for the time between tokens or swapping asks for them."""

    def __init__(self, config: DecodeConfig) -> None:
        self.times = StepTimes()
        self._itl_target_s = config.itl_target_s
        self._is_asked = config.itl_target_s is not None or config.swap_bytes > 0
        self._limits = StepLimits(config.max_step_tokens, config.max_sequences)

    def limits(self, decoding: Sequence[DecodeSequence], prefilling: Sequence[DecodeSequence]) -> StepLimits:
        """Bounds of the next step. With a target, prompts get what leaves a step with `decoding` below it; the one that is
        the furthest counts for all.
        """
        if self._itl_target_s is None or not decoding or not prefilling:
            return self._limits
        decodes = StepWork(len(decoding), sum(one.num_cached + 1 for one in decoding))
        furthest = max(one.num_cached for one in prefilling)
        num_tokens = self.times.max_chunk_tokens(decodes, furthest, self._itl_target_s)
        return replace(self._limits, max_prefill_tokens=num_tokens)

    def learn(self, batch: StepBatch, took_s: float) -> None:
        """A step has taken so long."""
        if self._is_asked:
            sizes = [(part.start, len(part.token_ids)) for part in batch.slices]
            num_attended = sum(attended(start, num) if num > 1 else start + 1 for start, num in sizes)
            self.times.learn(StepWork(sum(num for _, num in sizes), num_attended), took_s)

    def recompute_s(self, num_tokens: int) -> float:
        """Seconds that it takes to compute the KV of so many tokens."""
        return self.times.predict_s(StepWork(num_tokens, attended(0, num_tokens)))
