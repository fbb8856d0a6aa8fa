"""A `GenerateRequest` as the fields of OpenAI's body, so that both doors check requests by the same code.

Decides nothing: a field that is absent here is absent there, and what is wrong there is refused there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from google.protobuf.message import Message
from pydantic_core import from_json

from protocol.kvferry_v1_pb2 import Chat, ChatMessage, GenerateRequest, ResponseFormat, Tool, ToolChoice
from router.front.errors import MalformedJson

SAMPLING_FIELDS = (
    *("model", "n", "max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty", "seed", "ignore_eos"),
    *("prompt_logprobs", "echo", "kv_wire_budget", "priority", "cache_salt"),
)


def is_chat(request: GenerateRequest) -> bool:
    """Whether the fields are those of a chat completion."""
    return bool(request.HasField("chat"))


def fields_of(request: GenerateRequest) -> dict[str, Any]:
    """The body of `POST /v1/completions`, or of a chat completion. Raises `MalformedJson` for JSON text that is none."""
    fields = _present(request, SAMPLING_FIELDS)
    if request.logit_bias:
        fields["logit_bias"] = {str(token_id): bias for token_id, bias in sorted(request.logit_bias.items())}
    if request.stop:
        fields["stop"] = list(request.stop)
    if request.HasField("response_format"):
        fields["response_format"] = _response_format(request.response_format)
    return fields | (_chat_fields(request) if is_chat(request) else _completion_fields(request))


def _completion_fields(request: GenerateRequest) -> dict[str, Any]:
    fields = _present(request, ("logprobs",))
    if request.HasField("text"):
        fields["prompt"] = request.text
    elif request.HasField("token_ids"):
        fields["prompt"] = list(request.token_ids.ids)
    return fields


def _chat_fields(request: GenerateRequest) -> dict[str, Any]:
    chat: Chat = request.chat
    fields = {"messages": [_message(message) for message in chat.messages]} | _present(chat, ("parallel_tool_calls",))
    if request.HasField("logprobs"):
        fields |= {"logprobs": True, "top_logprobs": request.logprobs}
    if chat.tools:
        fields["tools"] = [_tool(number, tool) for number, tool in enumerate(chat.tools)]
    if chat.HasField("tool_choice"):
        fields["tool_choice"] = _tool_choice(chat.tool_choice)
    return fields


def _message(message: ChatMessage) -> dict[str, Any]:
    fields = {"role": message.role} | _present(message, ("content", "name", "tool_call_id"))
    if message.tool_calls:
        fields["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments_json}}
            for call in message.tool_calls
        ]
    return fields


def _tool(number: int, tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name} | _present(tool, ("description", "strict"))
    if tool.HasField("parameters_json"):
        function["parameters"] = _parsed(tool.parameters_json, f"tools[{number}].function.parameters")
    return {"type": "function", "function": function}


def _tool_choice(choice: ToolChoice) -> Any:
    if choice.HasField("function"):
        return {"type": "function", "function": {"name": choice.function}}
    return choice.mode


def _response_format(form: ResponseFormat) -> dict[str, Any]:
    fields: dict[str, Any] = {"type": form.type}
    if form.HasField("json_schema"):
        asked = form.json_schema
        schema = {"name": asked.name} | _present(asked, ("description", "strict"))
        if asked.HasField("schema_json"):
            schema["schema"] = _parsed(asked.schema_json, "response_format.json_schema.schema")
        fields["json_schema"] = schema
    return fields


def _parsed(text: str, param: str) -> Any:
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError as error:
        raise MalformedJson(f"{param} is not valid JSON: {error}", param=param) from None


def _present(message: Message, names: Sequence[str]) -> dict[str, Any]:
    return {name: getattr(message, name) for name in names if message.HasField(name)}
