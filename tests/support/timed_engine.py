"""An engine whose steps take time on a fake clock: so much for each, and so much for each token."""

from __future__ import annotations

from typing import Any

from engine.batch import StepBatch, StepResult
from engine.engine import Engine
from tests.support.clock import FakeClock
from tests.support.tiny_model import tiny_engine

STEP_S = 0.01
TOKEN_S = 0.002


class TimedEngine(Engine):
    """Told its clock after it was built; without one its steps take no time. `steps` are the batches that were run."""

    clock: FakeClock | None = None
    steps: list[StepBatch]

    def step(self, batch: StepBatch) -> StepResult:
        """As an engine's."""
        self.steps.append(batch)
        if self.clock is not None:
            self.clock.advance(step_s(batch))
        return super().step(batch)

    @classmethod
    def tiny(cls, **settings: Any) -> TimedEngine:
        """The tiny model's."""
        timed = cls.__new__(cls)
        vars(timed).update(vars(tiny_engine(**settings)))
        timed.steps = []
        return timed


def step_s(batch: StepBatch) -> float:
    """What a step takes."""
    return STEP_S + TOKEN_S * batch.num_tokens
