"""Tools and response formats over gRPC: the same plans and the same calls as over HTTP."""

import json
from dataclasses import replace
from typing import Any

from protocol.kvferry_v1_pb2 import (
    Chat,
    ChatMessage,
    GenerateRequest,
    JsonSchema,
    ResponseFormat,
    Tool,
    ToolCall,
    ToolChoice,
)
from protocol.request import GenerateRequest as WorkerRequest
from tests.support.byte_tokenizer import EOS_ID, tool_tokenizer
from tests.support.http_front import front_config
from tests.support.rpc_front import BothDoors
from tests.support.scripted_generator import Script, ScriptedGenerator

SCHEMA = {"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}}, "required": ["z"]}
ARGUMENTS = '{"z": "é", "a": 1}'
CALL = f'<tool_call>\n{{"name": "look", "arguments": {ARGUMENTS}}}\n</tool_call>'
HTTP_TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": SCHEMA}}
RPC_TOOL = Tool(name="look", description="Looks.", parameters_json=json.dumps(SCHEMA))
USER = {"role": "user", "content": "hi"}


def _doors(text: str = CALL) -> BothDoors:
    generator = ScriptedGenerator(Script([*text.encode(), EOS_ID]))
    return BothDoors(generator, front_config(context_tokens=2000), tokenizer=tool_tokenizer("hermes"))


def _chat(**fields: Any) -> Chat:
    return Chat(messages=[ChatMessage(role="user", content="hi")], **fields)


def _nameless(request: WorkerRequest) -> WorkerRequest:
    return replace(request, request_id="")


async def test_a_call_comes_whole_and_is_no_text() -> None:
    """As in the HTTP door's answer, but for its random id; its tokens are delivered as they are drawn."""
    doors = _doors("Well. " + CALL)
    (choice,) = (await doors.chat(tools=[HTTP_TOOL])).json()["choices"]
    answer = await doors.generate(GenerateRequest(chat=_chat(tools=[RPC_TOOL])))
    (call,) = [call for delta in answer.deltas() for call in delta.tool_calls]
    (shown,) = choice["message"]["tool_calls"]
    assert {"name": call.name, "arguments": call.arguments_json} == shown["function"]
    assert call.arguments_json == ARGUMENTS
    assert (call.index, call.id[:5]) == (0, "call_")
    assert answer.text() == (choice["message"]["content"] or "")
    assert answer.finish() == choice["finish_reason"] == "tool_calls"
    assert [token.id for token in answer.tokens()] == [*("Well. " + CALL).encode(), EOS_ID]


async def test_tools_and_choices_make_the_same_request_as_over_http() -> None:
    """Prompt and grammar too, which follow the order of a schema's fields."""
    doors = _doors()
    forms: list[tuple[Any, ToolChoice | None, bool | None]] = [
        (None, None, None),
        ("none", ToolChoice(mode="none"), None),
        ("required", ToolChoice(mode="required"), False),
        ({"type": "function", "function": {"name": "look"}}, ToolChoice(function="look"), True),
    ]
    for shown, choice, is_parallel in forms:
        await doors.chat(tools=[HTTP_TOOL], seed=1, tool_choice=shown, parallel_tool_calls=is_parallel)
        chat = _chat(tools=[RPC_TOOL], tool_choice=choice, parallel_tool_calls=is_parallel)
        assert (await doors.generate(GenerateRequest(chat=chat, seed=1))).error is None
        first, second = map(_nameless, doors.generator.requests[-2:])
        assert first == second


async def test_earlier_calls_and_their_results_are_turns() -> None:
    """The template shows both as it does over HTTP."""
    doors = _doors()
    function = {"name": "look", "arguments": ARGUMENTS}
    messages = [
        USER,
        {"role": "assistant", "tool_calls": [{"id": "call_1", "type": "function", "function": function}]},
        {"role": "tool", "content": "a wall", "tool_call_id": "call_1"},
    ]
    await doors.chat(messages=messages, seed=1)
    chat = _chat()
    call = ToolCall(id="call_1", name="look", arguments_json=ARGUMENTS)
    chat.messages.append(ChatMessage(role="assistant", tool_calls=[call]))
    chat.messages.append(ChatMessage(role="tool", content="a wall", tool_call_id="call_1"))
    assert (await doors.generate(GenerateRequest(chat=chat, seed=1))).error is None
    first, second = map(_nameless, doors.generator.requests)
    assert first == second


async def test_response_formats_make_the_same_request_as_over_http() -> None:
    """Each of the three."""
    doors = _doors("{}")
    named = {"name": "answer", "description": "An answer.", "schema": SCHEMA, "strict": True}
    forms: list[tuple[Any, ResponseFormat]] = [
        ({"type": "text"}, ResponseFormat(type="text")),
        ({"type": "json_object"}, ResponseFormat(type="json_object")),
        (
            {"type": "json_schema", "json_schema": named},
            ResponseFormat(
                type="json_schema",
                json_schema=JsonSchema(
                    name="answer", description="An answer.", schema_json=json.dumps(SCHEMA), strict=True
                ),
            ),
        ),
    ]
    for shown, form in forms:
        assert (await doors.chat(response_format=shown, seed=1)).status_code == 200
        assert (await doors.generate(GenerateRequest(chat=_chat(), response_format=form, seed=1))).error is None
        first, second = map(_nameless, doors.generator.requests[-2:])
        assert first == second
    assert doors.generator.requests[-1].sampling.grammar
