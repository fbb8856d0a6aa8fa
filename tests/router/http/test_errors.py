"""Errors of the tree, and errors that nobody meant, as the client sees them."""

import logging

import pytest

from protocol.errors import (
    BadRequest,
    ConfigError,
    DeadlineExceeded,
    IllegalMove,
    KvferryError,
    ModelNotFound,
    NotReady,
    OutOfBlocks,
    Overloaded,
    PromptTooLong,
    StaleTicket,
    WorkerUnavailable,
)
from router.http.errors import BodyTooLarge, status_of
from tests.support.http_front import FrontUnderTest, front_config, sse_events
from tests.support.scripted_generator import Prompt, Script, ScriptedGenerator

EXPECTED = [
    (BadRequest("x"), 400, "invalid_request_error"),
    (PromptTooLong("x"), 400, "invalid_request_error"),
    (ModelNotFound("x"), 404, "invalid_request_error"),
    (BodyTooLarge("x"), 413, "invalid_request_error"),
    (Overloaded("x"), 429, "rate_limit_error"),
    (NotReady("x"), 503, "server_error"),
    (WorkerUnavailable("x"), 503, "server_error"),
    (StaleTicket("x"), 503, "server_error"),
    (OutOfBlocks("x"), 503, "server_error"),
    (DeadlineExceeded("x"), 504, "server_error"),
    (IllegalMove("x"), 500, "server_error"),
    (ConfigError("x"), 500, "server_error"),
]


def _failing(error: BaseException, after: bytes = b"") -> FrontUnderTest:
    if not after and isinstance(error, KvferryError):
        return FrontUnderTest(ScriptedGenerator(Script(start_error=error)))
    return FrontUnderTest(ScriptedGenerator(Script(list(after), error=error)))


@pytest.mark.parametrize(("error", "status", "kind"), EXPECTED, ids=lambda value: getattr(value, "code", str(value)))
@pytest.mark.parametrize("is_stream", [False, True])
async def test_errors_before_the_first_token_are_whole_responses(
    error: KvferryError, status: int, kind: str, is_stream: bool
) -> None:
    """Status and body follow from the class of the error, for streams too; retryable ones say when."""
    response = await _failing(error).complete(stream=is_stream)
    assert response.status_code == status
    assert response.json()["error"] == {"message": "x", "type": kind, "param": None, "code": error.code}
    assert ("retry-after" in response.headers) == (status in (429, 503))


def test_every_error_of_the_tree_has_a_status() -> None:
    """New classes get their ancestor's status, none is without."""
    pending = [KvferryError]
    while pending:
        kind = pending.pop()
        assert 400 <= status_of(kind("x")) < 600
        pending += kind.__subclasses__()


async def test_an_error_within_a_stream_is_its_last_event() -> None:
    """What was sent stays sent; then the error object; then the stream ends without the mark of success."""
    events = sse_events(await _failing(WorkerUnavailable("gone"), b"ab").complete(stream=True))
    assert [event["choices"][0]["text"] for event in events[:-1]] == ["a", "b"]
    assert events[-1]["error"]["code"] == "worker_unavailable"


async def test_an_error_after_tokens_fails_a_whole_answer() -> None:
    """Without a stream a half answer is no answer."""
    assert (await _failing(WorkerUnavailable("gone"), b"ab").complete()).status_code == 503


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_fault_inside_is_told_without_its_details(is_stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    """The client gets the request id; the log gets the same id and the traceback; nobody gets the prompt."""
    front = _failing(ZeroDivisionError("secret detail"), b"ab")
    with caplog.at_level(logging.DEBUG):
        response = await front.complete(prompt="my prompt", stream=is_stream)
    error = sse_events(response)[-1]["error"] if is_stream else response.json()["error"]
    assert is_stream or response.status_code == 500
    assert error["code"] == "internal_error"
    assert response.headers["x-request-id"] in error["message"]
    assert "secret" not in response.text
    assert response.headers["x-request-id"] in caplog.text
    assert "ZeroDivisionError" in caplog.text
    assert "my prompt" not in caplog.text


async def test_one_failing_prompt_fails_the_request_and_cancels_the_others() -> None:
    """Several prompts share their request's fate."""
    scripts: dict[Prompt, Script] = {(97,): Script([65], hangs=True), (98,): Script([66], error=NotReady("no worker"))}
    front = FrontUnderTest(ScriptedGenerator(scripts=scripts))
    response = await front.complete(prompt=["a", "b"])
    assert response.status_code == 503
    assert response.json()["error"]["message"] == "no worker"
    assert len(front.generator.cancelled) == 2
    assert front.metric("kvferry_requests_running") == 0


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_request_that_takes_too_long_is_ended(is_stream: bool) -> None:
    """At the deadline the generation is cancelled, and the client is told."""
    generator = ScriptedGenerator(Script([65], hangs=True))
    front = FrontUnderTest(generator, front_config(request_timeout_s=0.05))
    response = await front.complete(stream=is_stream)
    error = sse_events(response)[-1]["error"] if is_stream else response.json()["error"]
    assert is_stream or response.status_code == 504
    assert error["code"] == "deadline_exceeded"
    assert len(generator.cancelled) == 1


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/embeddings", 404, "not_found"),
        ("POST", "/", 404, "not_found"),
        ("GET", "/v1/completions", 405, "method_not_allowed"),
        ("DELETE", "/v1/models", 405, "method_not_allowed"),
    ],
)
async def test_unknown_paths_and_methods(method: str, path: str, status: int, code: str) -> None:
    """Routing errors have OpenAI's body too; a wrong method learns the right one."""
    async with FrontUnderTest().client() as client:
        response = await client.request(method, path)
    assert response.status_code == status
    assert response.json()["error"]["code"] == code
    assert ("allow" in response.headers) == (status == 405)
