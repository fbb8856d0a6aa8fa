"""How many tokens of whom the next step runs: decodes first, then prefill chunks in order, under one token budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from protocol.errors import ConfigError
from scheduling.work import Work


@dataclass(frozen=True, slots=True)
class StepLimits:
    """Bounds of one step: new tokens over all sequences, and sequences."""

    max_step_tokens: int
    max_sequences: int

    def __post_init__(self) -> None:
        if self.max_step_tokens < 1 or self.max_sequences < 1:
            raise ConfigError(f"a step needs room for at least one token of one sequence, got {self}")


@dataclass(frozen=True, slots=True)
class Grant:
    """The next `num_tokens` uncached tokens of a sequence run in this step."""

    request_id: str
    num_tokens: int


def plan_step(decoding: Sequence[Work], prefilling: Sequence[Work], limits: StepLimits) -> list[Grant]:
    """Grants for one step, never more than the limits in tokens or sequences.

    Every decode takes one token, in the given order, as far as the limits reach; what is left of the budget goes to
    prefills in the given order, each as much as it still needs and may run in one step. A prefill is cut where the budget
    ends and goes on in the next step.
    """
    grants = [Grant(work.request_id, 1) for work in decoding[: min(limits.max_sequences, limits.max_step_tokens)]]
    num_left = limits.max_step_tokens - len(grants)
    for work in prefilling[: limits.max_sequences - len(grants)]:
        num_tokens = min(work.num_next, num_left)
        if num_tokens < 1:
            break
        grants.append(Grant(work.request_id, num_tokens))
        num_left -= num_tokens
    return grants
