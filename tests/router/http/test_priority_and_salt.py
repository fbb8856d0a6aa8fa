"""What a request says of its urgency and of whom it shares prefixes with, by its body and by a header."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.request import MAX_CACHE_SALT_CHARS, MAX_PRIORITY
from router.http.priorities import PRIORITY_HEADER
from tests.support.http_front import FrontUnderTest

NONE: dict[str, Any] = {"parameters": []}
NAMES = ["completions", "chat"]
PATHS = ["/v1/completions", "/v1/chat/completions"]
BASES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "hi"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
}


async def _ask(front: FrontUnderTest, path: str, header: str | None = None, **fields: Any) -> Any:
    headers = {} if header is None else {PRIORITY_HEADER: header}
    return await front.post(path, BASES[path] | {"max_tokens": 1} | fields, headers)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("fields", "header", "wanted"),
    [
        ({}, None, 0),
        ({"priority": None}, None, 0),
        ({"priority": -3}, None, -3),
        ({"priority": MAX_PRIORITY}, None, MAX_PRIORITY),
        ({}, "7", 7),
        ({}, "-7", -7),
        ({}, f"-{MAX_PRIORITY}", -MAX_PRIORITY),
        ({"priority": None}, "7", 7),
        ({"priority": 0}, "7", 0),
        ({"priority": -1}, "7", -1),
    ],
)
async def test_the_bodys_priority_wins_over_the_headers(
    path: str, fields: dict[str, Any], header: str | None, wanted: int
) -> None:
    """What reaches the workers is the body's own, else the header's, else 0."""
    front = FrontUnderTest()
    response = await _ask(front, path, header, **fields)
    assert response.status_code == 200, response.text
    assert [request.priority for request in front.generator.requests] == [wanted]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "header", ["", "high", "1.0", "1e3", "0x1", "1_000", "+1", "--1", "\u00b2", "2147483648", "9" * 99]
)
async def test_a_header_that_is_no_integer_is_refused_by_name(path: str, header: str) -> None:
    """With 400 in OpenAI's form, also where the body says a priority, and no worker hears of it."""
    front = FrontUnderTest()
    async with front.client() as client:
        sent = [(PRIORITY_HEADER.encode(), header.encode("latin-1"))]
        response = await client.post(path, json=BASES[path] | {"priority": 1}, headers=sent)
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_request")
    assert error["param"] == PRIORITY_HEADER
    assert PRIORITY_HEADER in error["message"]
    assert front.generator.requests == []
    assert sum(front.metric("kvferry_requests_total", endpoint=name, outcome="invalid_request") for name in NAMES) == 1


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("priority", "1"), ("priority", 1.5), ("priority", True), ("priority", 2**31), ("priority", -(2**31)),
        ("cache_salt", ""), ("cache_salt", 5), ("cache_salt", ["a"]), ("cache_salt", "x" * (MAX_CACHE_SALT_CHARS + 1)),
    ],
)  # fmt: skip
async def test_wrong_fields_are_refused_by_name(path: str, name: str, value: Any) -> None:
    """With 400, and no worker hears of it; a right header does not heal a wrong field."""
    front = FrontUnderTest()
    response = await _ask(front, path, "1", **{name: value})
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, name, "invalid_request")
    assert front.generator.requests == []


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("salt", "wanted"),
    [(None, ""), ("a", "a"), ("\u00e9 \u2603", "\u00e9 \u2603"), ("\u2603" * MAX_CACHE_SALT_CHARS,) * 2],
)
async def test_the_salt_reaches_the_request(path: str, salt: str | None, wanted: str) -> None:
    """As it was sent, whatever characters it has; without one there is none."""
    front = FrontUnderTest()
    response = await _ask(front, path, cache_salt=salt)
    assert response.status_code == 200, response.text
    assert [request.cache_salt for request in front.generator.requests] == [wanted]


async def test_every_prompt_and_every_choice_has_both() -> None:
    """A request of several prompts is several for the workers, all as urgent and as salted."""
    front = FrontUnderTest()
    await _ask(front, "/v1/completions", "2", prompt=["a", "b"], n=2, cache_salt="s")
    assert [(one.priority, one.cache_salt, one.num_choices) for one in front.generator.requests] == [(2, "s", 2)] * 2


async def test_the_document_has_fields_and_header() -> None:
    """With their ranges, and the header at both endpoints only."""
    found = (await FrontUnderTest().get("/openapi.json")).json()
    for name in ("ChatBody", "CompletionBody"):
        properties = found["components"]["schemas"][name]["properties"]
        priority, salt = properties["priority"]["anyOf"][0], properties["cache_salt"]["anyOf"][0]
        assert (priority["minimum"], priority["maximum"]) == (-MAX_PRIORITY, MAX_PRIORITY)
        assert (salt["minLength"], salt["maxLength"]) == (1, MAX_CACHE_SALT_CHARS)
    parameter = {"$ref": "#/components/parameters/requestPriority"}
    takes_it = {
        path for path, methods in found["paths"].items() if parameter in methods.get("post", NONE)["parameters"]
    }
    assert takes_it == set(PATHS)
    assert found["components"]["parameters"]["requestPriority"]["name"] == PRIORITY_HEADER
