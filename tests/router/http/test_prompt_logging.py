"""What the log has of prompts and answers: nothing, unless the operator asked for the prompts."""

import logging
from typing import Any

import pytest

from protocol.errors import WorkerUnavailable
from tests.support.http_front import FrontUnderTest, front_config
from tests.support.scripted_generator import Script, ScriptedGenerator

SECRET = "sesame"
ANSWER = "opened"


def _front(**settings: Any) -> FrontUnderTest:
    script = Script(list(ANSWER.encode()), error=WorkerUnavailable("gone"))
    return FrontUnderTest(ScriptedGenerator(script), front_config(**settings))


async def test_prompts_are_logged_for_those_who_ask(caplog: pytest.LogCaptureFixture) -> None:
    """One line a prompt, with the request's id; line breaks of the prompt do not break the line."""
    with caplog.at_level(logging.INFO):
        prompt = [f"{SECRET}\none", f"{SECRET} two"]
        body = {"prompt": prompt, "n": 2, "max_tokens": 1}
        await _front(log_prompts=True).post("/v1/completions", body, {"x-request-id": "mine"})
        await _front(log_prompts=True).complete(prompt=[104, 256])
    lines = [record.getMessage() for record in caplog.records if "prompt '" in record.getMessage()]
    assert len(lines) == 3
    assert all(line.startswith("request mine, ") for line in lines[:2])
    assert lines[0].endswith(f"prompt '{SECRET}\\none'")
    assert lines[1].endswith(f"prompt '{SECRET} two'")
    assert lines[2].endswith("prompt 'h<|end|>'")


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 6},
        {"max_tokens": 9},
        {"echo": True, "logprobs": 1, "max_tokens": 0},
        {"stop": ANSWER[:3]},
        {"temperature": 9},
        {"max_tokens": 99999},
        {SECRET: 1},
    ],
)
async def test_otherwise_no_line_has_text_of_prompt_or_answer(
    fields: dict[str, Any], is_stream: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever becomes of the request."""
    with caplog.at_level(logging.DEBUG):
        await _front().complete(prompt=SECRET, stream=is_stream, **fields)
        await _front().chat(messages=[{"role": "user", "content": SECRET}], stream=is_stream)
    assert SECRET not in caplog.text
    assert ANSWER not in caplog.text
