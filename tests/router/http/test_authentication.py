"""Keys at the HTTP door: who is let in, what stays open, and that CORS and logs go along with it."""

from __future__ import annotations

import json
import logging
from typing import Any

import httpx
import pytest

from tests.support.http_front import MODEL, FrontUnderTest, RawCall, front_config, sse_events

KEYS = ("first-key", "second-key", "third-key-that-is-longer")
BODY = {"model": MODEL, "prompt": "hi"}


def _front(**changes: Any) -> FrontUnderTest:
    return FrontUnderTest(config=front_config(api_keys=KEYS, **changes))


async def _send(front: FrontUnderTest, method: str, path: str, headers: list[tuple[bytes, bytes]]) -> httpx.Response:
    async with front.client() as client:
        content = json.dumps(BODY).encode() if method == "POST" else b""
        return await client.request(method, path, content=content, headers=headers)


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
async def test_each_key_opens_the_door(key: str, scheme: str) -> None:
    """Any of the keys will do, and the name of the scheme has no case."""
    front = _front()
    response = await _send(front, "POST", "/v1/completions", [(b"authorization", f"{scheme} {key}".encode())])
    assert response.status_code == 200


@pytest.mark.parametrize(
    "sent",
    [
        None,
        b"",
        b"Bearer",
        b"Bearer ",
        b"first-key",
        b"Basic first-key",
        b"Bearer first-ke",
        b"Bearer first-keyy",
        b"Bearer FIRST-KEY",
        b"Bearer first-key,second-key",
        b"Bearer caf\xc3\xa9",
        b"Bearer \xff\xfe",
        b"\xff",
        b"Bearer " + b"x" * 50_000,
    ],
)
async def test_anything_else_is_401_with_openai_s_body(sent: bytes | None) -> None:
    """Missing, malformed, wrong and undecodable: one status, one code, a challenge, an id, and no worker is asked."""
    front = _front()
    response = await _send(front, "POST", "/v1/completions", [] if sent is None else [(b"authorization", sent)])
    assert response.status_code == 401
    error = response.json()["error"]
    assert (error["code"], error["type"], error["param"]) == ("invalid_api_key", "authentication_error", None)
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-request-id"]
    assert not any(key in response.text for key in KEYS)
    assert front.generator.requests == []


@pytest.mark.parametrize(("path", "status"), [("/health", 200), ("/readiness", 200), ("/metrics", 200)])
async def test_probes_and_prometheus_need_no_key(path: str, status: int) -> None:
    """The three open paths, and only they."""
    assert (await _send(_front(), "GET", path, [])).status_code == status


@pytest.mark.parametrize(
    "path", ["/v1/models", "/cluster", "/nowhere", "/health/", "/metrics/x", "//health", "/HEALTH"]
)
async def test_every_other_path_needs_one(path: str) -> None:
    """Also those that do not exist, so that nobody can list them."""
    assert (await _send(_front(), "GET", path, [])).status_code == 401


async def test_without_keys_the_door_is_open() -> None:
    """Nothing is asked for, and what a client shows is not looked at."""
    front = FrontUnderTest()
    for headers in ([], [(b"authorization", b"Bearer whatever")], [(b"authorization", b"\xff")]):
        assert (await _send(front, "POST", "/v1/completions", headers)).status_code == 200


async def test_the_body_of_a_stranger_is_not_read() -> None:
    """The answer is sent before a single part was asked for."""
    call = RawCall(_front().app, "/v1/completions", [b"{", b"}"])
    await call.run()
    assert call.status == 401
    assert call.num_received == 0


PREFLIGHT = [
    (b"origin", b"https://app.example"),
    (b"access-control-request-method", b"POST"),
    (
        b"access-control-request-headers",
        b"authorization, content-type, x-request-id, x-request-timeout, x-kvferry-priority",
    ),
]


async def test_a_preflight_of_a_known_origin_needs_no_key() -> None:
    """The browser asks without a key whether it may send one."""
    front = _front(cors_origins=("https://app.example",))
    response = await _send(front, "OPTIONS", "/v1/chat/completions", PREFLIGHT)
    assert response.status_code == 200
    assert response.headers["access-control-allow-origin"] == "https://app.example"
    assert set(response.headers["access-control-allow-methods"].split(", ")) == {"GET", "POST", "OPTIONS"}


async def test_answers_and_refusals_can_be_read_by_a_known_origin() -> None:
    """A page sees the 401 as such, and the headers that are exposed to it."""
    front = _front(cors_origins=("https://app.example",))
    origin = (b"origin", b"https://app.example")
    refused = await _send(front, "POST", "/v1/completions", [origin])
    served = await _send(front, "POST", "/v1/completions", [origin, (b"authorization", b"Bearer first-key")])
    assert (refused.status_code, served.status_code) == (401, 200)
    for response in (refused, served):
        assert response.headers["access-control-allow-origin"] == "https://app.example"
        assert response.headers["access-control-expose-headers"] == "x-request-id, retry-after"


async def test_a_stranger_s_page_is_told_nothing() -> None:
    """Another origin gets no permission, by preflight or by answer."""
    front = _front(cors_origins=("https://app.example",))
    other = [(b"origin", b"https://evil.example"), *PREFLIGHT[1:]]
    preflight = await _send(front, "OPTIONS", "/v1/completions", other)
    served = await _send(front, "POST", "/v1/completions", [other[0], (b"authorization", b"Bearer first-key")])
    assert preflight.status_code == 400
    assert "access-control-allow-origin" not in preflight.headers
    assert "access-control-allow-origin" not in served.headers


async def test_cors_is_off_unless_origins_are_given() -> None:
    """A preflight is a request like any other then: refused without a key, and no answer has CORS headers."""
    front = _front()
    assert (await _send(front, "OPTIONS", "/v1/completions", PREFLIGHT)).status_code == 401
    served = await _send(front, "POST", "/v1/completions", [PREFLIGHT[0], (b"authorization", b"Bearer first-key")])
    assert not [name for name in served.headers if name.startswith("access-control")]


@pytest.mark.parametrize("key", ["first-key", "wrong-key-marker"])
async def test_no_log_line_holds_a_prompt_or_a_key(key: str, caplog: pytest.LogCaptureFixture) -> None:
    """At DEBUG, over whole and streamed answers and over refusals, by both endpoints."""
    front = _front()
    with caplog.at_level(logging.DEBUG):
        async with front.client() as client:
            headers = {"authorization": f"Bearer {key}"}
            for stream in (False, True):
                prompt = {**BODY, "prompt": "prompt-marker", "stream": stream, "max_tokens": 2}
                turns = [{"role": "user", "content": "prompt-marker"}]
                chat = {"model": MODEL, "messages": turns, "stream": stream, "max_tokens": 2}
                for path, body in (("/v1/completions", prompt), ("/v1/chat/completions", chat)):
                    response = await client.post(path, json=body, headers=headers)
                    assert response.status_code == (200 if key in KEYS else 401)
                    if stream and key in KEYS:
                        assert sse_events(response)[-1] == "[DONE]"
            await client.post("/v1/completions", json={"prompt": "prompt-marker", "nonsense": 1}, headers=headers)
    assert caplog.records
    everything = caplog.text + "".join(repr(record.__dict__) for record in caplog.records)
    assert "prompt-marker" not in everything
    assert key not in everything
