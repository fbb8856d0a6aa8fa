"""`docs/failure-modes.md`, row by row: each failure is made in the duo, and all that its row says must be so."""

from __future__ import annotations

import re
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

from cluster.settings import ServeSettings
from tests.duo.failure_modes import MODULES
from tests.duo.failure_modes.registry import SCENARIOS
from tests.duo.failure_modes.scene import CLIENTS_ID, Scene
from tests.duo.failure_modes.table import DOCUMENT, Row, rows
from tests.support.duo import DuoOptions

pytestmark = pytest.mark.timeout(60)

ROOT = DOCUMENT.parents[1]
TIME_SCALE = 0.05
"""Deadlines are so much shorter here."""
MARGIN_S = 1.0
"""For what has to be done when a deadline has fired: a fake clock's seconds."""


@cache
def fault_free_text() -> str:
    """The answer when nothing happens."""
    scene = Scene(DuoOptions(), 1.0)
    return scene.duo.run(scene.ask).text


def check_log(row: Row, scene: Scene, lines: list[str]) -> None:
    """Every line of the row is in the log, with an id of the request where it has one: the client's or the generation's."""
    request_id = "|".join(map(re.escape, [CLIENTS_ID, *scene.watched.ids]))
    for pattern in row.log_patterns:
        parts = re.split(r"(<\w+>)", pattern)
        expression = "".join(
            f"(?:{request_id})" if part == "<id>" else ".+" if re.fullmatch(r"<\w+>", part) else re.escape(part)
            for part in parts
        )
        assert any(re.fullmatch(expression, line, re.DOTALL) for line in lines), (pattern, lines)


def check_recovers(scene: Scene) -> None:
    """With its workers started again the cluster serves the next request, and holds nothing afterwards."""
    scene.revive()

    async def work() -> str:
        await scene.look_until_gone()
        return (await scene.ask(cache_salt="again")).text

    assert scene.duo.run(work) == fault_free_text()
    scene.duo.settle(15.0)
    scene.duo.check_idle()


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row.id))
def test_it_is_handled_as_the_table_says(row: Row, caplog: pytest.LogCaptureFixture) -> None:
    """The client sees what it should and within the deadline, the counters rise, the lines are logged, nothing is left."""
    scenario = SCENARIOS[row.id]
    deadline_s = (row.deadline_s or 1.0) * TIME_SCALE
    scene = Scene(scenario.options(deadline_s), deadline_s, scenario.config)
    duo = scene.duo
    duo.run(duo.fleet.look)
    assert not any(map(scene.count, row.counters))
    caplog.set_level("INFO")
    started_at = duo.clock.now

    seen = duo.run(lambda: scenario.act(scene))

    assert seen.answer == row.answer
    assert row.answer != "200" or seen.text == fault_free_text()
    assert ("retry-after" in seen.headers) == row.answer.startswith(("429", "503"))
    assert row.deadline_s is None or duo.clock.now - started_at <= deadline_s + MARGIN_S
    check_log(row, scene, [record.getMessage() for record in caplog.records])
    duo.run(duo.fleet.look)
    for counter in row.counters:
        assert scene.count(counter) >= 1, counter
    check_recovers(scene)


def test_every_row_has_a_scenario_and_every_scenario_a_row() -> None:
    """None is claimed without a test, none is tested without being told."""
    assert [row.id for row in rows()] == list(dict.fromkeys(row.id for row in rows()))
    assert {row.id for row in rows()} == SCENARIOS.keys()
    assert all(any(one.act.__module__ == module.__name__ for module in MODULES) for one in SCENARIOS.values())


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row.id))
def test_the_settings_exist_with_their_defaults(row: Row) -> None:
    """Every deadline is a setting of `kvferry serve`, and its default is the document's."""
    defaults = {one.name: one.default for one in fields(ServeSettings)}
    for name, value in row.settings:
        assert defaults[name] == value


@pytest.mark.parametrize("row", rows(), ids=lambda row: str(row.id))
def test_the_other_tests_exist(row: Row) -> None:
    """Each is a file, or a function in a file."""
    for test in row.other_tests:
        path, _, name = test.partition("::")
        assert (ROOT / path).is_file(), test
        assert not name or f"def {name}(" in Path(ROOT / path).read_text(), test
