"""The cases that a window is scored by: codecs by rule, and the baseline that drops tokens. Knows no text and no result."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.quality.dropping import (
    FIRST_SHARES,
    DropCrossing,
    DropKind,
    SelectiveEngine,
    first_and_last,
    most_important,
    num_kept,
)
from protocol.wire_rule import Importance, WireCodec, WireRule
from quality.split import Crossing, ExactWindow, SplitBench
from transfer.codec.budget import only_tier

DROP = "drop"
"""What stands for a codec in the rows of the baseline."""


class Case(Protocol):
    """One way to cross."""

    @property
    def name(self) -> str:
        """In a few words."""
        ...

    def labels(self, num_context: int) -> dict[str, Any]:
        """What tells it from the others: codec, budget, importance, sinks; None where it has no choice."""
        ...

    def contest(self) -> object:
        """Of the cases with one contest only the best is reported."""
        ...

    def crossing(self, split: SplitBench, window: ExactWindow) -> Crossing:
        """How the window's KV crosses. This or the crossing raises `ConfigError` for a budget out of reach."""
        ...


@dataclass(frozen=True, slots=True)
class RuleCase:
    """A codec, as a transfer has it."""

    rule: WireRule

    @property
    def name(self) -> str:
        """See `Case.name`."""
        return " ".join(str(value) for value in self.labels(0).values() if value is not None)

    def labels(self, num_context: int) -> dict[str, Any]:
        """See `Case.labels`."""
        rule = self.rule
        if only_tier(rule) is not None:
            return {"codec": rule.codec.value, "budget": None, "importance": None, "sinks": None}
        return {
            "codec": rule.codec.value,
            "budget": rule.budget,
            "importance": rule.importance.value,
            "sinks": rule.num_sinks,
        }

    def contest(self) -> object:
        """Every rule is reported."""
        return self.rule

    def crossing(self, split: SplitBench, window: ExactWindow) -> Crossing:
        """In the chunks of a transfer."""
        return split.crossing(window, self.rule)


@dataclass(frozen=True, slots=True)
class FirstAndLastCase:
    """The first and the last tokens stay. `sinks` in its row are the first ones."""

    engine: SelectiveEngine
    budget: float
    first_share: float

    @property
    def name(self) -> str:
        """See `Case.name`."""
        return f"{DROP} {self.budget:g} {DropKind.FIRST_AND_LAST} {self.first_share:g}"

    def labels(self, num_context: int) -> dict[str, Any]:
        """See `Case.labels`."""
        num_first = round(self.first_share * num_kept(self.engine.layout, num_context, self.budget))
        return _drop_labels(self.budget, DropKind.FIRST_AND_LAST, num_first)

    def contest(self) -> object:
        """Only the best share of a budget is reported."""
        return (DROP, self.budget)

    def crossing(self, split: SplitBench, window: ExactWindow) -> Crossing:
        """The same tokens of every window."""
        num_context = split.sizes.num_context
        number = num_kept(self.engine.layout, num_context, self.budget)
        return DropCrossing(self.engine, first_and_last(num_context, number, self.first_share), num_context)


@dataclass(frozen=True, slots=True)
class MostImportantCase:
    """Sinks stay, and the tokens that the context's last queries attend to most."""

    engine: SelectiveEngine
    budget: float
    num_sinks: int

    @property
    def name(self) -> str:
        """See `Case.name`."""
        return f"{DROP} {self.budget:g} {DropKind.WINDOW} {self.num_sinks}"

    def labels(self, num_context: int) -> dict[str, Any]:
        """See `Case.labels`."""
        return _drop_labels(self.budget, DropKind.WINDOW, self.num_sinks)

    def contest(self) -> object:
        """Every one is reported."""
        return self

    def crossing(self, split: SplitBench, window: ExactWindow) -> Crossing:
        """Unlike a codec, which sends chunks as they are read, it is told the importance of the whole context."""
        num_context = split.sizes.num_context
        number = num_kept(self.engine.layout, num_context, self.budget)
        places = most_important(window.importance_of(num_context), number, self.num_sinks)
        return DropCrossing(self.engine, places, num_context)


@dataclass(frozen=True, slots=True)
class Asked:
    """What is asked for; every combination is a case, but for what a codec does not look at."""

    codecs: Sequence[WireCodec]
    budgets: Sequence[float]
    kinds: Sequence[Importance]
    num_sinks: Sequence[int]
    drop_kinds: Sequence[DropKind]

    def rules(self) -> list[WireRule]:
        """Each rule once. Raises `ConfigError` for a budget or a number of sinks that none can have."""
        found: list[WireRule] = []
        for codec in self.codecs:
            if only_tier(WireRule(codec)) is not None:
                found.append(WireRule(codec, num_sinks=0))
            else:
                choices = itertools.product(self.budgets, self.kinds, self.num_sinks)
                found += [WireRule(codec, budget, kind, sinks) for budget, kind, sinks in choices]
        return list(dict.fromkeys(found))

    def cases(self, engine: SelectiveEngine) -> list[Case]:
        """Codecs first. Raises as `rules` does."""
        return [*map(RuleCase, self.rules()), *dict.fromkeys(self._dropping(engine))]

    def _dropping(self, engine: SelectiveEngine) -> Iterable[Case]:
        for kind, budget in itertools.product(self.drop_kinds, self.budgets):
            if kind is DropKind.FIRST_AND_LAST:
                yield from (FirstAndLastCase(engine, budget, share) for share in FIRST_SHARES)
            else:
                yield from (MostImportantCase(engine, budget, number) for number in self.num_sinks)


def _drop_labels(budget: float, kind: DropKind, num_sinks: int) -> dict[str, Any]:
    return {"codec": DROP, "budget": budget, "importance": kind.value, "sinks": num_sinks}
