"""What is refused, and that both doors refuse it with the same code and name."""

from typing import Any

import grpc
import pytest

from protocol.errors import KvferryError, ModelNotFound, NotReady, OutOfBlocks, Overloaded, WorkerUnavailable
from protocol.kvferry_v1_pb2 import (
    Chat,
    ChatMessage,
    GenerateRequest,
    GenerateResponse,
    JsonSchema,
    ListModelsRequest,
    ResponseFormat,
    TokenIds,
    Tool,
    ToolChoice,
)
from protocol.kvferry_v1_pb2_grpc import InferenceStub
from tests.support.http_front import MODEL, WAIT_S, front_config
from tests.support.rpc_front import BothDoors, RpcAnswer, trailing_of
from tests.support.scripted_generator import Script, ScriptedGenerator

USER = {"role": "user", "content": "hi"}
HI: dict[str, Any] = {"messages": [ChatMessage(role="user", content="hi")]}


def _tools(**function: Any) -> list[dict[str, Any]]:
    return [{"type": "function", "function": function}]


COMPLETIONS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    *(
        ({"prompt": "hi", name: value}, {"text": "hi", name: value})
        for name, value in [
            ("model", "gpt-17"), ("n", 0), ("n", 200), ("max_tokens", 0), ("max_tokens", 2**31), ("max_tokens", 63),
            ("min_tokens", 20), ("temperature", -0.1), ("temperature", 2.1), ("temperature", float("nan")), ("top_p", 0.0),
            ("top_p", 1.5), ("top_k", -2), ("min_p", 1.1), ("presence_penalty", 3.0), ("frequency_penalty", -3.0),
            ("repetition_penalty", 0.0), ("seed", 2**63), ("logprobs", 21), ("prompt_logprobs", 21),
            ("stop", ["a", "b", "c", "d", "e"]), ("stop", [""]),
            ("kv_wire_budget", 0.0), ("kv_wire_budget", 0.5), ("kv_wire_budget", 1.5), ("kv_wire_budget", float("nan")),
            ("priority", -(2**31)), ("cache_salt", ""), ("cache_salt", "x" * 257),
        ]
    ),
    ({}, {}),
    ({"prompt": ""}, {"text": ""}),
    ({"prompt": "x" * 64}, {"text": "x" * 64}),
    ({"prompt": []}, {"token_ids": TokenIds()}),
    ({"prompt": [257]}, {"token_ids": TokenIds(ids=[257])}),
    ({"prompt": "hi", "logit_bias": {"257": 1}}, {"text": "hi", "logit_bias": {257: 1}}),
    ({"prompt": "hi", "logit_bias": {"1": 101}}, {"text": "hi", "logit_bias": {1: 101}}),
]  # fmt: skip
CHATS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"messages": []}, {"chat": Chat()}),
    ({"messages": [{"role": "king", "content": "hi"}]}, {"chat": Chat(messages=[{"role": "king", "content": "hi"}])}),
    ({"messages": [USER, {"role": "user"}]}, {"chat": Chat(messages=[*HI["messages"], ChatMessage(role="user")])}),
    ({"messages": [USER], "echo": True}, {"chat": Chat(**HI), "echo": True}),
    ({"messages": [USER], "logprobs": True, "top_logprobs": 30}, {"chat": Chat(**HI), "logprobs": 30}),
    ({"messages": [USER], "max_tokens": 63}, {"chat": Chat(**HI), "max_tokens": 63}),
    ({"messages": [USER], "tools": _tools(name="no name")}, {"chat": Chat(**HI, tools=[Tool(name="no name")])}),
    (
        {"messages": [USER], "tool_choice": "required"},
        {"chat": Chat(**HI, tool_choice=ToolChoice(mode="required"))},
    ),
    (
        {"messages": [USER], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"chat": Chat(**HI, tool_choice=ToolChoice(function="f"))},
    ),
    (
        {"messages": [USER], "response_format": {"type": "poem"}},
        {"chat": Chat(**HI), "response_format": ResponseFormat(type="poem")},
    ),
    (
        {"messages": [USER], "response_format": {"type": "json_schema", "json_schema": {"name": "", "schema": 5}}},
        {
            "chat": Chat(**HI),
            "response_format": ResponseFormat(type="json_schema", json_schema=JsonSchema(name="", schema_json="5")),
        },
    ),
]


@pytest.mark.parametrize(("body", "fields"), COMPLETIONS + CHATS)
async def test_both_doors_refuse_alike(body: dict[str, Any], fields: dict[str, Any]) -> None:
    """The same code, field and message, and no worker is touched."""
    doors = BothDoors()
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    shown = (await doors.post(path, body)).json()["error"]
    answer = await doors.generate(GenerateRequest(**fields))
    assert answer.messages == []
    assert (answer.trailing["kvferry-code"], answer.trailing.get("kvferry-param")) == (shown["code"], shown["param"])
    assert _details(answer) == shown["message"]
    assert answer.status in (grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND)
    assert (answer.status is grpc.StatusCode.NOT_FOUND) == (shown["code"] == ModelNotFound.code)
    assert "retry-after-s" not in answer.trailing
    assert doors.generator.requests == []
    assert doors.metric("kvferry_requests_total", endpoint="grpc", outcome=shown["code"]) == 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"chat": Chat(**HI, tools=[Tool(name="f", parameters_json="{")])}, "tools[0].function.parameters"),
        ({"chat": Chat(**HI, tools=[Tool(name="f", parameters_json="[" * 9999)])}, "tools[0].function.parameters"),
        (
            {
                "chat": Chat(**HI),
                "response_format": ResponseFormat(type="json_schema", json_schema=JsonSchema(schema_json='{"a": NaN}')),
            },
            "response_format.json_schema.schema",
        ),
    ],
)
async def test_json_text_that_is_none_is_refused_by_name(fields: dict[str, Any], param: str) -> None:
    """Where HTTP would have found the whole body to be no JSON, the field is named."""
    answer = await BothDoors().generate(GenerateRequest(**fields))
    assert answer.status is grpc.StatusCode.INVALID_ARGUMENT
    assert (answer.trailing["kvferry-code"], answer.trailing["kvferry-param"]) == ("malformed_json", param)


@pytest.mark.parametrize(
    ("error", "status", "is_retryable"),
    [
        (Overloaded("full"), grpc.StatusCode.RESOURCE_EXHAUSTED, True),
        (NotReady("starting"), grpc.StatusCode.UNAVAILABLE, True),
        (WorkerUnavailable("gone"), grpc.StatusCode.UNAVAILABLE, True),
        (OutOfBlocks("full"), grpc.StatusCode.UNAVAILABLE, True),
        (KvferryError("bug"), grpc.StatusCode.INTERNAL, False),
    ],
)
async def test_a_generation_that_cannot_start_ends_with_its_error(
    error: KvferryError, status: grpc.StatusCode, is_retryable: bool
) -> None:
    """The error's own code; when to try again, where that may help."""
    doors = BothDoors(ScriptedGenerator(Script(start_error=error)), front_config(retry_after_s=7))
    answer = await doors.generate()
    assert answer.status is status
    assert answer.trailing["kvferry-code"] == error.code
    assert answer.trailing.get("retry-after-s") == ("7" if is_retryable else None)
    assert doors.metric("kvferry_requests_total", endpoint="grpc", outcome=error.code) == 1


async def test_an_error_within_a_stream_follows_what_was_streamed() -> None:
    """What came before is delivered, then the call ends with the error."""
    doors = BothDoors(ScriptedGenerator(Script(list(b"ab"), error=WorkerUnavailable("worker 3 is gone"))))
    answer = await doors.generate(GenerateRequest(text="hi", max_tokens=9))
    assert answer.text() == "ab"
    assert answer.status is grpc.StatusCode.UNAVAILABLE
    assert _details(answer) == "worker 3 is gone"


async def test_what_was_not_raised_on_purpose_is_told_without_details() -> None:
    """The client learns the request id, the log the rest."""
    doors = BothDoors(ScriptedGenerator(Script(list(b"a"), error=ZeroDivisionError("secret"))))
    answer = await doors.generate(GenerateRequest(text="hi", max_tokens=9), [("x-request-id", "mine")])
    assert answer.status is grpc.StatusCode.INTERNAL
    assert "secret" not in _details(answer)
    assert "mine" in _details(answer)


async def test_a_full_queue_refuses() -> None:
    """More choices than may run and wait now: the client is told to come back."""
    doors = BothDoors(ScriptedGenerator(Script(hangs=True)), front_config(max_concurrent=1, max_queue=0))
    async with doors.channel() as channel:
        first = InferenceStub(channel).Generate(GenerateRequest(text="hi"), timeout=WAIT_S)
        assert (await first.read()).HasField("start")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await InferenceStub(channel).Generate(GenerateRequest(text="hi"), timeout=WAIT_S).read()
        first.cancel()
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert trailing_of(caught.value) == {"kvferry-code": "overloaded", "retry-after-s": "1"}


async def test_a_request_beyond_the_limit_is_not_read() -> None:
    """gRPC itself ends the call, so there is no code of ours; one of the limit's size is served."""
    request = GenerateRequest(text="x" * 400)
    doors = BothDoors(config=front_config(context_tokens=1000, max_body_bytes=request.ByteSize()))
    assert (await doors.generate(request)).status is grpc.StatusCode.OK
    answer = await doors.generate(GenerateRequest(text="x" * 401))
    assert answer.status is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "larger than max" in _details(answer)
    assert answer.trailing == {}
    assert len(doors.generator.requests) == 1


async def test_bytes_that_are_no_message_are_refused() -> None:
    """As a wrong request, not as a fault of the server."""
    async with BothDoors().channel() as channel:
        method = channel.unary_stream("/kvferry.v1.Inference/Generate", bytes, GenerateResponse.FromString)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await method(b"\xff\xff\xff", timeout=WAIT_S).read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert trailing_of(caught.value) == {"kvferry-code": "malformed_message"}


async def test_the_served_model_is_listed() -> None:
    """Its name and its context; a call that names it is served."""
    doors = BothDoors()
    async with doors.channel() as channel:
        (model,) = (await InferenceStub(channel).ListModels(ListModelsRequest(), timeout=WAIT_S)).models
    assert (model.id, model.max_model_len, model.created) == (MODEL, 64, doors.front.started_at)
    assert (await doors.generate(GenerateRequest(model=model.id, text="hi"))).error is None


def _details(answer: RpcAnswer) -> str:
    assert answer.error is not None
    return answer.error.details() or ""
