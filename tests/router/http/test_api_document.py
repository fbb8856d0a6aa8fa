"""`docs/api.md` against the code: the fields it lists, the examples it gives, the errors it names."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pydantic import BaseModel

from protocol.errors import by_code
from router.front.chat_body import ChatBody
from router.front.completion_body import CompletionBody
from router.http.errors import status_of
from tests.support.byte_tokenizer import tool_tokenizer
from tests.support.http_front import FrontUnderTest, front_config

DOCUMENT = (Path(__file__).parents[3] / "docs" / "api.md").read_text()
BODIES: dict[str, type[BaseModel]] = {"completions": CompletionBody, "chat": ChatBody}
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
NEEDED: dict[str, dict[str, Any]] = {
    "completions": {"prompt": "hi"},
    "chat": {"messages": [{"role": "user", "content": "hi"}]},
}


class FieldRow(NamedTuple):
    """A row of the table of fields, for one endpoint."""

    endpoint: str
    name: str
    example: str


def _tables(heading: str) -> list[list[str]]:
    """The cells of the rows of the tables under a heading, without their first rows."""
    section = DOCUMENT.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.strip("|").split(" | ") for line in section.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows[1:]]


def _field_rows() -> list[FieldRow]:
    rows = []
    for name, where, _, _, example, _ in _tables("Request fields"):
        endpoints = list(BODIES) if where == "both" else [where]
        rows += [FieldRow(endpoint, name.strip("`"), example.strip("`")) for endpoint in endpoints]
    return rows


FIELD_ROWS = _field_rows()


@pytest.mark.parametrize("endpoint", BODIES)
def test_the_table_has_the_fields_of_the_bodies(endpoint: str) -> None:
    """Each field of a body has one row, and there is no row without a field."""
    listed = [row.name for row in FIELD_ROWS if row.endpoint == endpoint]
    assert sorted(listed) == sorted(BODIES[endpoint].model_fields)


@pytest.mark.parametrize("row", FIELD_ROWS, ids=lambda row: f"{row.endpoint}-{row.name}")
async def test_each_example_is_served(row: FieldRow) -> None:
    """It shows the field of its row, and a body with it gets an answer."""
    example = json.loads("{" + row.example + "}")
    assert row.name in example
    front = FrontUnderTest(config=front_config(context_tokens=512), tokenizer=tool_tokenizer("hermes"))
    response = await front.post(PATHS[row.endpoint], NEEDED[row.endpoint] | example)
    assert response.status_code == 200, response.text


@pytest.mark.parametrize(("status", "code"), [(row[0], row[1].strip("`")) for row in _tables("Errors")])
def test_errors_have_the_status_that_is_told(status: str, code: str) -> None:
    """Every code of the table is one of the server's, under its status."""
    kind = by_code(code)
    assert kind.code == code
    assert status_of(kind("x")) == int(status)


def test_the_bodies_in_commands_are_served() -> None:
    """What the text shows with curl is JSON of fields that the table has."""
    bodies = re.findall(r"-d '(\{.*\})'", DOCUMENT)
    assert len(bodies) >= 2
    for body in bodies:
        CompletionBody.model_validate_json(body)
