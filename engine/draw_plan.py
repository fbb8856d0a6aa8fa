"""Which tokens a step draws, from which row of the model's answer: all that is known before anything is computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from engine.batch import Draw, SequenceSlice, StepBatch
from engine.logit_rules import RuledRow
from protocol.errors import KvferryError


@dataclass(slots=True)
class DrawPlan:
    """`rows` are rows of the batch, one for each slice that draws. Draw `d` uses row `rows[sources[d]]`.

    `ruled` holds by their number the draws that change their logits. A request in `failures` draws nothing.
    """

    rows: list[int] = field(default_factory=list)
    draws: list[tuple[SequenceSlice, Draw]] = field(default_factory=list)
    sources: list[int] = field(default_factory=list)
    ruled: dict[int, RuledRow] = field(default_factory=dict)
    failures: dict[str, KvferryError] = field(default_factory=dict)

    @property
    def has_shared_rows(self) -> bool:
        """Whether several tokens are drawn from one row."""
        return len(self.draws) != len(self.rows)


def plan_draws(batch: StepBatch, rule: Callable[[str, Draw], RuledRow | None]) -> DrawPlan:
    """The plan of a batch. `rule` makes the rules of a request's draw, if it has any, or raises why it cannot be made."""
    plan = DrawPlan()
    end = 0
    for part in batch.slices:
        end += part.num_tokens
        if not part.draws:
            continue
        try:
            rules = [rule(part.request_id, draw) for draw in part.draws]
        except KvferryError as error:
            plan.failures[part.request_id] = error
            continue
        first = len(plan.draws)
        plan.ruled |= {first + at: each for at, each in enumerate(rules) if each is not None}
        plan.sources += [len(plan.rows)] * len(part.draws)
        plan.draws += [(part, draw) for draw in part.draws]
        plan.rows.append(end - 1)
    return plan
