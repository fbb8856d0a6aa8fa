"""The scenarios, by the id of the row that they play."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from tests.duo.failure_modes.scene import Scene, Seen
from tests.support.duo import DuoOptions

Act = Callable[[Scene], Coroutine[Any, Any, Seen]]


@dataclass(frozen=True, slots=True)
class Scenario:
    """`options` makes the duo, given the seconds that the row's deadline has here; `config` changes the front's limits."""

    act: Act
    options: Callable[[float], DuoOptions]
    config: dict[str, Any] = field(default_factory=dict)


SCENARIOS: dict[str, Scenario] = {}


def _usual(_: float) -> DuoOptions:
    return DuoOptions()


def failure_mode(
    row_id: str, options: Callable[[float], DuoOptions] = _usual, config: dict[str, Any] | None = None
) -> Callable[[Act], Act]:
    """Registers the scenario of a row. Raises `ValueError` for a second one."""

    def register(act: Act) -> Act:
        if row_id in SCENARIOS:
            raise ValueError(f"{row_id} has two scenarios")
        SCENARIOS[row_id] = Scenario(act, options, config or {})
        return act

    return register
