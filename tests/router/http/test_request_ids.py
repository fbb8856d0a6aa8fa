"""`x-request-id` in and out."""

import logging
from typing import Any

import pytest

from tests.support.http_front import FrontUnderTest


@pytest.mark.parametrize("sent", ["abc-123", "x" * 128, "with space ~"])
async def test_a_clients_id_comes_back(sent: str, caplog: pytest.LogCaptureFixture) -> None:
    """The id is returned as it was sent, and the log has it."""
    with caplog.at_level(logging.INFO):
        response = await FrontUnderTest().post("/v1/completions", {"prompt": "a secret"}, {"x-request-id": sent})
    assert response.headers["x-request-id"] == sent
    assert sent in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/nowhere", "/metrics"])
async def test_an_id_is_made_where_none_was_sent(path: str) -> None:
    """Every response has an id of its own, errors too."""
    front = FrontUnderTest()
    ids = {(await front.get(path)).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3


@pytest.mark.parametrize("sent", [b"x" * 129, b"caf\xc3\xa9", b"tab\there", b"\x7f"])
async def test_an_id_that_is_none_is_refused(sent: bytes) -> None:
    """Too long or not printable: 400, under a fresh id."""
    front = FrontUnderTest()
    async with front.client() as client:
        response = await client.post("/v1/completions", json={"prompt": "a"}, headers=[(b"x-request-id", sent)])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "x-request-id"
    assert response.headers["x-request-id"].encode() != sent
    assert front.generator.requests == []


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"max_tokens": 3}, "completions, generation {id}: 2 prompt tokens, 0 cached, 3 generated, length, in "),
        ({"max_tokens": 3, "n": 2}, ": 2 prompt tokens, 0 cached, 3+3 generated, length+length, in "),
        ({"temperature": 9}, "'/v1/completions' 400 in "),
    ],
)
async def test_a_request_is_one_line(fields: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture) -> None:
    """With the client's id: an answer by what it came to, all else by its status."""
    front = FrontUnderTest()
    with caplog.at_level(logging.INFO):
        await front.post("/v1/completions", {"prompt": "hi"} | fields, {"x-request-id": "mine"})
    (line,) = [record.getMessage() for record in caplog.records if record.name.startswith("router.")]
    assert "request mine" in line
    assert told.format(id=front.generator.requests[0].request_id if front.generator.requests else "") in line
