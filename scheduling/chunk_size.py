"""How many prompt tokens a step may read beside its decodes, so that the next token of each is not late. Learned online.

A step takes a + b * tokens + c * attended seconds, where attended counts the (query, key) pairs of all its sequences. The three
are fitted by weighted least squares over steps that fade, relative to what was measured, from a stated rate on. Source: the
linear cost of a step is common to published simulators of continuous batching; fading, prior and limits are this project's.
Does not know whether the machine is shared: what slows steps down makes chunks smaller.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from protocol.errors import ConfigError
from scheduling.prefill_time import ASSUMED_TOKENS_PER_SECOND
from scheduling.work import Work

FADING = 0.99
"""What a step weighs after the next one: about the last hundred count."""
PRIOR_STEPS = 2.0
"""What the prior weighs for good, in steps of `PRIOR_TOKENS` tokens, so that the fit is solvable when all steps are alike. It
is scaled to what steps take, and keeps only its proportions: a stated rate may be wrong by far.
"""
PRIOR_TOKENS = 64
PRIOR_FIXED_S = 1e-3
PRIOR_PAIR_SHARE = 1e-4
"""What a pair takes beside a token, before it is known."""
CLIP_FACTOR = 4.0
"""A step that took so many times what was predicted counts as that many times: a pause of the machine is no step."""
NUM_UNCLIPPED = 8
REFIT_STEPS = 8
"""The fit is made again after so many steps, and after each of the first."""
MIN_CHUNK_TOKENS = 16
"""So much is read in a step even if it makes it late: otherwise prompts would wait for as long as anything decodes."""


@dataclass(frozen=True, slots=True)
class StepWork:
    """New tokens of a step, and how many (query, key) pairs its attention looks at."""

    num_tokens: int
    num_attended: int

    @classmethod
    def of(cls, parts: Iterable[tuple[Work, int]]) -> StepWork:
        """Of works and how many tokens of each the step runs."""
        num_tokens = num_attended = 0
        for work, num_part in parts:
            num_tokens += num_part
            num_attended += attended(work.num_cached, num_part)
        return cls(num_tokens, num_attended)


def attended(num_cached: int, num_tokens: int) -> int:
    """Pairs of `num_tokens` new tokens after `num_cached`, each looking at all before it and itself."""
    return num_tokens * num_cached + num_tokens * (num_tokens + 1) // 2


class StepTimes:
    """The time of a step. Not thread-safe."""

    def __init__(self, tokens_per_s: float = ASSUMED_TOKENS_PER_SECOND) -> None:
        if not (math.isfinite(tokens_per_s) and tokens_per_s > 0):
            raise ConfigError(f"a rate of steps must be a positive number of tokens a second, got {tokens_per_s}")
        token_s = 1.0 / tokens_per_s
        self._weights = (PRIOR_FIXED_S, token_s, token_s * PRIOR_PAIR_SHARE)
        self._prior = np.array(self._weights)
        usual_s = PRIOR_FIXED_S + PRIOR_TOKENS * token_s
        scales = np.array([1.0, PRIOR_TOKENS, attended(PRIOR_TOKENS, PRIOR_TOKENS)]) / usual_s
        self._ridge = np.diag(PRIOR_STEPS * scales**2)
        self._log_level = 0.0
        self._squares = np.zeros((3, 3))
        self._moments = np.zeros(3)
        self._is_solved = True
        self.num_samples = 0

    @property
    def weights(self) -> tuple[float, float, float]:
        """Seconds of a step, of a token and of a pair, none negative, as of the last fit."""
        if not self._is_solved:
            self._weights = self._solved()
            self._is_solved = True
        return self._weights

    def predict_s(self, step: StepWork) -> float:
        """Seconds, above 0."""
        fixed_s, token_s, pair_s = self.weights
        return max(1e-6, fixed_s + token_s * step.num_tokens + pair_s * step.num_attended)

    def learn(self, step: StepWork, actual_s: float) -> None:
        """A step has taken so long. A time that no step can take (not above 0) teaches nothing."""
        if not (math.isfinite(actual_s) and actual_s > 0):
            return
        if self.num_samples >= NUM_UNCLIPPED:
            actual_s = min(actual_s, CLIP_FACTOR * self.predict_s(step))
        features = np.array([1.0, step.num_tokens, step.num_attended])
        row = features / actual_s
        self.num_samples += 1
        off = math.log(actual_s / float(features @ self._prior)) - self._log_level
        self._log_level += max(1.0 - FADING, 1.0 / self.num_samples) * off
        self._squares = FADING * self._squares + np.outer(row, row)
        self._moments = FADING * self._moments + row
        self._is_solved = self.num_samples > NUM_UNCLIPPED and self.num_samples % REFIT_STEPS != 0

    def max_chunk_tokens(self, decodes: StepWork, num_cached: int, itl_target_s: float) -> int:
        """Most tokens of a prompt with `num_cached` of its tokens behind it that a step with `decodes` may read to stay under
        `itl_target_s`; at least `MIN_CHUNK_TOKENS`. With several prompts, ask for the one that is the furthest.
        """
        _, token_s, pair_s = self.weights
        left_s = itl_target_s - self.predict_s(decodes)
        # token_s * n + pair_s * (n * num_cached + n * (n + 1) / 2) = left_s
        linear = token_s + pair_s * (num_cached + 0.5)
        if left_s <= 0.0:
            return MIN_CHUNK_TOKENS
        root = linear + math.sqrt(linear * linear + 2.0 * pair_s * left_s)
        return max(MIN_CHUNK_TOKENS, int(2.0 * left_s / root)) if root > 0.0 else 2**31 - 1

    def _solved(self) -> tuple[float, float, float]:
        """The fit without negative weights: one that would be is taken as 0, and the others are fitted again."""
        level = math.exp(self._log_level)
        squares = self._squares + self._ridge / level**2
        moments = self._moments + self._ridge @ self._prior / level
        kept = [0, 1, 2]
        while kept:
            found = np.linalg.solve(squares[np.ix_(kept, kept)], moments[kept])
            least = int(found.argmin())
            if found[least] >= 0.0:
                break
            del kept[least]
        weights = [0.0, 0.0, 0.0]
        for index, weight in zip(kept, found, strict=True):
            weights[index] = float(weight)
        return weights[0], weights[1], weights[2]
