"""What a step of the engine costs: a + b * new tokens + c * attended pairs, in seconds, and the fit of the three."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.chunk_size import StepWork


@dataclass(frozen=True, slots=True)
class StepCost:
    """Seconds of a step, of a new token in it, and of a (query, key) pair that its attention looks at."""

    fixed_s: float
    token_s: float
    pair_s: float

    def seconds(self, step: StepWork) -> float:
        """Of one step."""
        return self.fixed_s + self.token_s * step.num_tokens + self.pair_s * step.num_attended


DEMO_MODEL_COST = StepCost(fixed_s=0.0766, token_s=0.00331, pair_s=2.0e-6)
"""SmolLM2-135M on one core of an AMD EPYC, float32, as `python -m benchmarks.step_cost --pin 0 --repeats 7` printed it on a
machine that others used as well. 25 steps of 1 to 256 tokens are off by 17% in the mean.
"""


@dataclass(frozen=True, slots=True)
class TimedStep:
    """A step and how long it took."""

    work: StepWork
    seconds: float


def fit(steps: Sequence[TimedStep]) -> tuple[StepCost, float]:
    """The cost that is nearest to the measured times, each relative to itself, and the mean relative error left.

    Raises `ValueError` when the steps do not tell the three apart, or when one of them comes out negative.
    """
    rows = np.array([(1.0, step.work.num_tokens, step.work.num_attended) for step in steps])
    times = np.array([step.seconds for step in steps])
    scaled = rows / times[:, np.newaxis]
    found, _, rank, _ = np.linalg.lstsq(scaled, np.ones(len(steps)), rcond=None)
    if rank < 3 or found.min() < 0.0:
        raise ValueError(f"the steps do not tell fixed, token and pair costs apart: {found.tolist()}")
    fixed_s, token_s, pair_s = (float(value) for value in found)
    return StepCost(fixed_s, token_s, pair_s), float(np.abs(scaled @ found - 1.0).mean())
