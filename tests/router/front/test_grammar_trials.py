"""Grammars are tried apart: what is wrong or hostile is refused, and costs the server nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from protocol.errors import BadRequest
from router.front.grammar import MAX_GRAMMAR_BYTES, schema_grammar
from router.front.grammar_trials import GrammarTrials

GOOD = schema_grammar({"type": "object", "properties": {"x": {"type": "integer"}}}, "response_format")


@pytest.fixture(scope="module")
def trials() -> Iterator[GrammarTrials]:
    """One process for all tests."""
    shared = GrammarTrials()
    yield shared
    shared.close()


@pytest.mark.parametrize(
    ("schema", "reason"),
    [
        ({"type": "nonsense"}, "nonsense"),
        ({"not": {}}, "not"),
        ({"$ref": "#/nowhere"}, "nowhere"),
        ({"$ref": "https://example.com/schema"}, "example.com"),
        ({"type": "string", "pattern": "(?=a)"}, "look-around"),
        ({"type": "string", "format": "colour"}, "colour"),
        ({"x-guidance": {"lenient": True}}, "x-guidance"),
        ({"enum": ["x" * MAX_GRAMMAR_BYTES]}, str(MAX_GRAMMAR_BYTES)),
        (
            {"allOf": [{"anyOf": [{"required": [f"{i}{j}"]} for j in range(2)]} for i in range(40)]},
            "too large",
        ),
    ],
)
def test_a_schema_that_cannot_be_held_to_is_refused(trials: GrammarTrials, schema: dict[str, Any], reason: str) -> None:
    """The error names the field and says what llguidance says, on one line."""
    with pytest.raises(BadRequest, match=r"no answer|bytes long|must not") as refused:
        trials.check(schema_grammar(schema, "response_format"), "response_format")
    assert refused.value.param == "response_format"
    assert reason in refused.value.message
    assert "\n" not in refused.value.message


def test_a_hostile_schema_ends_its_process_and_the_next_is_served(trials: GrammarTrials) -> None:
    """The intersection of twenty-four patterns would take years."""
    patterns = [{"type": "string", "pattern": f".*{chr(97 + at)}.*"} for at in range(24)]
    with pytest.raises(BadRequest, match="too much time or memory") as refused:
        trials.check(schema_grammar({"allOf": patterns}, "tools"), "tools")
    assert refused.value.param == "tools"
    trials.check(GOOD, "response_format")


def test_a_process_that_was_killed_is_replaced() -> None:
    """Whoever killed it while it was idle: the next grammar starts another."""
    trials = GrammarTrials()
    trials.check(GOOD, "response_format")
    assert trials._process is not None
    os.kill(trials._process.pid, signal.SIGKILL)
    trials._process.wait(10)
    trials.check(schema_grammar({"type": "integer"}, "response_format"), "response_format")
    trials.close()


def test_what_has_passed_is_remembered() -> None:
    """The same grammar needs no process again, and bad ones are not taken for good ones."""
    trials = GrammarTrials()
    trials.check(GOOD, "response_format")
    trials.close()
    trials.check(GOOD, "response_format")
    assert trials._process is None
    for _ in range(2):
        with pytest.raises(BadRequest):
            trials.check("start: nothing", "response_format")
    trials.close()
