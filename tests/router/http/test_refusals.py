"""What is refused before any worker is touched, and how the refusal reads."""

from typing import Any

import pytest

from tests.support.http_front import FrontUnderTest, RawCall, front_config
from tests.support.scripted_generator import Script, ScriptedGenerator


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": ["a", 1]}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [1, True]}, "prompt"),
        ({"prompt": {"text": "a"}}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": [257]}, "prompt"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": -5}, "max_tokens"),
        ({"max_tokens": "5"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_tokens": 2**40}, "max_tokens"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.01}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**63}, "seed"),
        ({"seed": 10**400}, "seed"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"stop": ["a", "b", "c", "d", "e"]}, "stop"),
        ({"stop": ""}, "stop"),
        ({"stop": [1]}, "stop"),
        ({"stop": {}}, "stop"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"chunk": 1}}, "stream_options.chunk"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": 1.0}, "n"),
        ({"n": True}, "n"),
        ({"best_of": 3}, "best_of"),
        ({"best_of": 0}, "best_of"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"echo": 1}, "echo"),
        ({"suffix": "x"}, "suffix"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"": 1}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"01": 1}}, "logit_bias"),
        ({"logit_bias": {"1.0": 1}}, "logit_bias"),
        ({"logit_bias": {"\u0661": 1}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"logit_bias": {"257": 1}}, "logit_bias"),
        ({"logit_bias": {"1": 100.5}}, "logit_bias.1"),
        ({"logit_bias": {"1": -101}}, "logit_bias.1"),
        ({"logit_bias": {"1": "5"}}, "logit_bias.1"),
        ({"logit_bias": {"1": None}}, "logit_bias.1"),
        ({"logit_bias": [[1, 5]]}, "logit_bias"),
        ({"logit_bias": {str(key): 0 for key in range(1025)}}, "logit_bias"),
        ({"presence_penalty": 2.1}, "presence_penalty"),
        ({"presence_penalty": "0"}, "presence_penalty"),
        ({"frequency_penalty": -2.1}, "frequency_penalty"),
        ({"frequency_penalty": True}, "frequency_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"repetition_penalty": 101}, "repetition_penalty"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"min_tokens": 17}, "min_tokens"),
        ({"min_tokens": 1, "max_tokens": 0, "echo": True}, "min_tokens"),
        ({"max_tokens": 0, "echo": False}, "max_tokens"),
        ({"max_tokens": -1, "echo": True}, "max_tokens"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": True}, "prompt_logprobs"),
        ({"prompt_logprobs": 0, "stream": True}, "prompt_logprobs"),
        ({"ignore_eos": 1}, "ignore_eos"),
        ({"messages": []}, "messages"),
        ({"response_format": {"type": "text"}}, "response_format"),
        ({"max_completion_tokens": 4}, "max_completion_tokens"),
        ({"no_such_field": None}, "no_such_field"),
        ({"user": 5}, "user"),
    ],
)
async def test_a_wrong_field_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """400, OpenAI's body, the field's name, and no worker is touched."""
    front = FrontUnderTest()
    response = await front.complete(**fields)
    error = response.json()["error"]
    assert response.status_code == 400
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert param.split(".")[0] in error["message"]
    assert front.generator.requests == []


async def test_fields_that_change_nothing_are_accepted() -> None:
    """Clients that always send OpenAI's defaults are served, and null is as good as absent."""
    response = await FrontUnderTest().complete(
        n=1, best_of=1, echo=False, suffix=None, logit_bias={}, presence_penalty=0, frequency_penalty=0.0, user="u",
        stop=None, seed=None, temperature=None, stream=None, logprobs=None, max_tokens=None, repetition_penalty=1,
        min_tokens=0, prompt_logprobs=None,
    )  # fmt: skip
    assert response.status_code == 200


async def test_no_limit_without_an_echo_is_told_what_to_do() -> None:
    """`max_tokens` 0 is for looking at the prompt, and the refusal says so."""
    error = (await FrontUnderTest().complete(max_tokens=0)).json()["error"]
    assert "echo" in error["message"]


@pytest.mark.parametrize("limits", [{"max_choices": 3}, {"max_concurrent": 3}])
async def test_the_servers_own_limit_of_choices(limits: dict[str, int]) -> None:
    """No more choices of a prompt than are allowed, or could run at once; that many are served."""
    front = FrontUnderTest(config=front_config(**limits))
    error = (await front.complete(n=4)).json()["error"]
    assert error["param"] == "n"
    assert "at most 3" in error["message"]
    assert len((await front.complete(n=3)).json()["choices"]) == 3


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_numbers_that_are_none_are_refused(number: str) -> None:
    """No field takes a value that is not finite."""
    response = await FrontUnderTest().post("/v1/completions", f'{{"prompt": "a", "temperature": {number}}}'.encode())
    assert response.status_code == 400


@pytest.mark.parametrize("body", [b"", b"{", b"\xff\xfe", b"[" * 50_000, b'{"prompt": "\\ud800"}', b"{'prompt': 'a'}"])
async def test_malformed_json_is_refused(body: bytes) -> None:
    """400 with a code of its own."""
    response = await FrontUnderTest().post("/v1/completions", body)
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "malformed_json"


@pytest.mark.parametrize("body", [b"[]", b"1", b"null", b'"prompt"'])
async def test_a_body_that_is_no_object_is_refused(body: bytes) -> None:
    """400, without a field to name."""
    response = await FrontUnderTest().post("/v1/completions", body)
    assert response.status_code == 400
    assert response.json()["error"]["param"] is None


async def test_an_unknown_model_is_not_found() -> None:
    """404 with OpenAI's code; a body without a model means the served one."""
    front = FrontUnderTest()
    response = await front.complete(model="gpt-17")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "model_not_found"
    assert response.json()["error"]["param"] == "model"
    assert (await front.complete(model=None)).status_code == 200


async def test_a_prompt_must_leave_room_for_one_token() -> None:
    """A prompt of the context's length is refused with both numbers; one token less is served."""
    front = FrontUnderTest(config=front_config(context_tokens=40))
    error = (await front.complete(prompt="x" * 40)).json()["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["message"].count("40") == 2
    body = (await front.complete(prompt="x" * 39)).json()
    assert body["usage"]["completion_tokens"] == 1


async def test_an_explicit_limit_must_fit() -> None:
    """`max_tokens` beyond the context is refused, and the error says how many fit; exactly that many are served."""
    front = FrontUnderTest(config=front_config(context_tokens=40))
    response = await front.complete(prompt="x" * 30, max_tokens=11)
    error = response.json()["error"]
    assert response.status_code == 400
    assert (error["code"], error["param"]) == ("context_length_exceeded", "max_tokens")
    assert "at most 10" in error["message"]
    assert (await front.complete(prompt="x" * 30, max_tokens=10)).json()["usage"]["total_tokens"] == 40


async def test_the_workers_pool_limits_as_the_context_does() -> None:
    """A request that the whole pool cannot hold is refused although the model could."""
    front = FrontUnderTest(config=front_config(context_tokens=64, max_request_tokens=20))
    assert (await front.complete(prompt="x" * 20)).status_code == 400
    assert (await front.complete(prompt="x" * 10, max_tokens=10)).status_code == 200


async def test_one_prompt_at_fault_refuses_the_whole_request() -> None:
    """None of several prompts is run when one of them cannot be."""
    front = FrontUnderTest(ScriptedGenerator(Script([65])), front_config(context_tokens=20))
    assert (await front.complete(prompt=["a", "x" * 50])).status_code == 400
    assert front.generator.requests == []


async def test_more_prompts_than_ever_fit_are_refused() -> None:
    """It is the client's fault when a request could never be admitted."""
    front = FrontUnderTest(config=front_config(max_concurrent=2, max_queue=1))
    response = await front.complete(prompt=["a"] * 4)
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "prompt"


async def test_a_declared_body_beyond_the_limit_is_not_read() -> None:
    """413 on the strength of Content-Length alone."""
    front = FrontUnderTest(config=front_config(max_body_bytes=1000))
    call = RawCall(front.app, "/v1/completions", [b"x"] * 5, [(b"content-length", b"10000000")])
    await call.run()
    assert call.status == 413
    assert b"body_too_large" in call.body
    assert call.num_received == 0


async def test_a_body_in_parts_is_read_only_up_to_the_limit() -> None:
    """413 as soon as the parts exceed the limit; the rest is not taken."""
    front = FrontUnderTest(config=front_config(max_body_bytes=1000))
    call = RawCall(front.app, "/v1/completions", [b"x" * 400] * 100)
    await call.run()
    assert call.status == 413
    assert call.num_received == 3


async def test_a_body_of_exactly_the_limit_is_read() -> None:
    """The limit itself is allowed."""
    body = b'{"prompt": "a"}'
    front = FrontUnderTest(config=front_config(max_body_bytes=len(body)))
    assert (await front.post("/v1/completions", body)).status_code == 200
    assert (await front.post("/v1/completions", body + b" ")).status_code == 413


async def test_a_body_that_does_not_arrive_is_given_up() -> None:
    """The wait for the body has a deadline of its own."""
    front = FrontUnderTest(config=front_config(body_timeout_s=0.01))
    call = RawCall(front.app, "/v1/completions", [])
    await call.run()
    assert call.status == 408
