"""How long a worker takes from an order to read a prompt to its first token: learned online, one model a worker.

Recursive least squares with directional forgetting (Kulhavy, Restricted exponential forgetting, Automatica 1987) over four
features: one, tokens to compute, pairs that attention looks at, tokens queued ahead. Only what a sample tells of is forgotten,
so that a thousand equal prompts leave what is known of longer ones. Residuals are relative to what was measured, so that short
prompts count as much as long ones, and clipped, so that a stall moves little. Pure: values in, values out. Does not know
who the worker is, what a token costs elsewhere, or the time.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from protocol.errors import ConfigError

ASSUMED_TOKENS_PER_SECOND = 1000.0
"""Of a worker that states nothing else."""
FORGETTING = 0.98
"""What a sample weighs after the next one, while predictions are good: about the last fifty count."""
LEAST_FORGETTING = 0.8
"""The same while they are far off: the worker has changed, and what it was counts no more."""
ERROR_SMOOTHING = 0.1
USUAL_NOISE = 0.1
"""Relative deviation of a prompt's time that means nothing."""
NUM_UNCLIPPED = 4
"""The first samples correct the stated rate, however wrong it was."""
CLIP_SPREADS = 3.0
"""A residual counts as at most so many usual ones."""
LEAST_SPREAD = 0.05
MAX_SPREAD_GROWTH = 5.0
"""One outlier raises the usual residual by a part of this factor; a worker that has changed does so again and again."""
LEAST_UNKNOWN = 1e-9
"""Below it a direction is as good as known, and dividing by it would only add noise."""
MIN_PREDICTED_S = 1e-6

Number = TypeVar("Number", float, NDArray[np.float64])
Vector = tuple[float, float, float, float]
Matrix = tuple[Vector, Vector, Vector, Vector]


@dataclass(frozen=True, slots=True)
class PromptWork:
    """What is to be read: `num_computed_tokens` after `num_cached_tokens` whose KV is there already, behind
    `num_queued_tokens` of other prompts on the same worker.
    """

    num_computed_tokens: int
    num_cached_tokens: int = 0
    num_queued_tokens: int = 0

    def features(self) -> Vector:
        """As `features_of`."""
        return features_of(self.num_computed_tokens, self.num_cached_tokens, self.num_queued_tokens)


def features_of(num_computed: Number, num_cached: Number, num_queued: Number) -> tuple[float, Number, Number, Number]:
    """One, thousands of tokens, millions of (query, key) pairs, thousands of queued tokens: of numbers or arrays."""
    num_pairs = num_computed * (num_cached + (num_computed + 1) / 2)
    return 1.0, num_computed / 1e3, num_pairs / 1e6, num_queued / 1e3


@dataclass(frozen=True, slots=True)
class PrefillTimeModel:
    """`weights` are seconds a feature, never negative; `covariance` is how little is known of them. `error_ratio` is the
    running mean of |predicted - actual| / actual, each prediction made before its sample was learned; None before the first.
    """

    weights: Vector
    covariance: Matrix
    num_samples: int = 0
    error_ratio: float | None = None
    spread: float = LEAST_SPREAD

    @classmethod
    def stated(cls, tokens_per_second: float = ASSUMED_TOKENS_PER_SECOND) -> PrefillTimeModel:
        """The model before the first sample: every token, own or queued, takes its share of a second."""
        if not (math.isfinite(tokens_per_second) and tokens_per_second > 0):
            raise ConfigError(f"a prefill rate must be a positive number of tokens a second, got {tokens_per_second}")
        per_thousand_s = 1e3 / tokens_per_second
        return cls((0.0, per_thousand_s, 0.0, per_thousand_s), _prior(per_thousand_s))

    def predict_s(self, work: PromptWork) -> float:
        """Seconds from the order to the first token, above 0."""
        return max(MIN_PREDICTED_S, _dot(self.weights, work.features()))

    def learn(self, work: PromptWork, actual_s: float) -> PrefillTimeModel:
        """The model after a prompt that took `actual_s`. A time that no prompt can take (not above 0) teaches nothing."""
        if not (math.isfinite(actual_s) and actual_s > 0):
            return self
        residual = (actual_s - self.predict_s(work)) / actual_s
        is_early = self.num_samples < NUM_UNCLIPPED
        bound = math.inf if is_early else CLIP_SPREADS * self.spread
        features = _scaled(work.features(), 1.0 / (actual_s * USUAL_NOISE))
        towards = _times(self.covariance, features)
        unknown = _dot(features, towards)
        step = max(-bound, min(bound, residual)) / USUAL_NOISE / (1.0 + unknown)
        moved = _plus(self.weights, _scaled(towards, step))
        covariance = _reduced(self.covariance, towards, unknown, self._forgetting())
        return replace(
            self,
            weights=_without_negatives(moved, covariance),
            covariance=covariance,
            num_samples=self.num_samples + 1,
            error_ratio=_smoothed(self.error_ratio, abs(residual)),
            spread=self.spread if is_early else self._wider(abs(residual)),
        )

    def _forgetting(self) -> float:
        return max(LEAST_FORGETTING, math.pow(FORGETTING, self.spread / LEAST_SPREAD))

    def _wider(self, residual: float) -> float:
        seen = min(residual, MAX_SPREAD_GROWTH * self.spread)
        return max(LEAST_SPREAD, self.spread + ERROR_SMOOTHING * (seen - self.spread))


def _prior(per_thousand_s: float) -> Matrix:
    """The stated rate may be wrong by far. Own and queued tokens go together: a quiet worker teaches both."""
    token = (10 * per_thousand_s) ** 2
    both = 0.95 * token
    fixed, pairs = (0.1 * per_thousand_s) ** 2, (3 * per_thousand_s) ** 2
    return (
        (fixed, 0.0, 0.0, 0.0),
        (0.0, token, 0.0, both),
        (0.0, 0.0, pairs, 0.0),
        (0.0, both, 0.0, token),
    )


def _reduced(covariance: Matrix, towards: Vector, unknown: float, forgetting: float) -> Matrix:
    """After a sample: smaller in its direction by what it told, larger by what is forgotten there, elsewhere as before."""
    if unknown < LEAST_UNKNOWN:
        return covariance
    told = forgetting - (1.0 - forgetting) / unknown
    factor = told / (forgetting * (1.0 + unknown))
    a, b, c, d = (
        _plus(row, _scaled(towards, -factor * weight)) for row, weight in zip(covariance, towards, strict=True)
    )
    return a, b, c, d


def _without_negatives(weights: Vector, covariance: Matrix) -> Vector:
    """The nearest weights that are not negative, near as the covariance measures it: the others take over what one loses."""
    for index in range(4):
        if weights[index] < 0 and covariance[index][index] > 0:
            column = covariance[index]
            weights = _plus(weights, _scaled(column, -weights[index] / column[index]))
    a, b, c, d = (max(0.0, weight) for weight in weights)
    return a, b, c, d


def _smoothed(average: float | None, value: float) -> float:
    return value if average is None else average + ERROR_SMOOTHING * (value - average)


def _dot(left: Vector, right: Vector) -> float:
    return left[0] * right[0] + left[1] * right[1] + left[2] * right[2] + left[3] * right[3]


def _plus(left: Vector, right: Vector) -> Vector:
    return left[0] + right[0], left[1] + right[1], left[2] + right[2], left[3] + right[3]


def _scaled(vector: Vector, factor: float) -> Vector:
    return vector[0] * factor, vector[1] * factor, vector[2] * factor, vector[3] * factor


def _times(matrix: Matrix, vector: Vector) -> Vector:
    a, b, c, d = matrix
    return _dot(a, vector), _dot(b, vector), _dot(c, vector), _dot(d, vector)
