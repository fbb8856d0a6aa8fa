"""`x-request-id` in and out."""

import logging

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
