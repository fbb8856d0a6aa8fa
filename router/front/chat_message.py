"""The turns of a conversation: as a body has them, and as chat templates of Hugging Face expect them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from protocol.errors import BadRequest
from router.front.sampling_body import Strict, only, wrong
from router.front.tools.body import MessageToolCall
from router.front.tools.detection import tool_form_of
from router.front.tools.offer import check_template
from router.tokenization.tokenizer import Tokenizer


def _content(value: Any) -> str | None:
    """The text of a message: a string, or the text parts joined; None beside tool calls."""
    if value is None or isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise wrong("must be a text or a list of parts of type 'text'")
    for part in value:
        if not isinstance(part, dict) or part.keys() != {"type", "text"} or part["type"] != "text":
            raise PydanticCustomError("unsupported_value", "only parts with type 'text' and a text are supported")
        if not isinstance(part["text"], str):
            raise wrong("the text of a part must be a string")
    return "".join(part["text"] for part in value)


class ChatMessage(Strict):
    """One turn of the conversation. Null fields come back with the answers that clients append to their messages."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_content)] = None
    name: str | None = None
    tool_calls: list[MessageToolCall] | None = None
    tool_call_id: str | None = None
    refusal: Annotated[str | None, only()] = None
    function_call: Annotated[dict[str, Any] | None, only()] = None
    annotations: Annotated[list[Any] | None, only([])] = None
    audio: Annotated[dict[str, Any] | None, only()] = None


def turns_of(tokenizer: Tokenizer, messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """The turns for the model's chat template: content is a text, arguments of calls are objects, nothing is null.

    Raises `BadRequest` that names the field at fault: a turn without what its role needs or with what it has not, or turns
    about tools where the template knows none.
    """
    return [_turn(tokenizer, message, f"messages[{number}]") for number, message in enumerate(messages)]


def _turn(tokenizer: Tokenizer, message: ChatMessage, place: str) -> dict[str, Any]:
    _check_fields(message, place)
    # OpenAI's `developer` is what templates know as `system`.
    role = "system" if message.role == "developer" else message.role
    # Many templates add the content to a text although it may be null beside calls.
    turn: dict[str, Any] = {"role": role, "content": message.content or ""}
    if message.name is not None:
        turn["name"] = message.name
    if message.role == "tool" or message.tool_calls:
        check_template(tokenizer, f"{place}.role" if message.role == "tool" else f"{place}.tool_calls")
    if message.tool_call_id is not None:
        turn["tool_call_id"] = _shown_id(tokenizer, message.tool_call_id)
    if message.tool_calls:
        turn["tool_calls"] = [
            _call(tokenizer, call, f"{place}.tool_calls[{number}]") for number, call in enumerate(message.tool_calls)
        ]
    return turn


def _check_fields(message: ChatMessage, place: str) -> None:
    is_caller = message.role == "assistant" and bool(message.tool_calls)
    if message.content is None and not is_caller:
        raise BadRequest(f"{place}.content is missing", param=f"{place}.content")
    if message.tool_calls and message.role != "assistant":
        raise BadRequest(f"{place}.tool_calls: only the assistant calls tools", param=f"{place}.tool_calls")
    if (message.role == "tool") != (message.tool_call_id is not None):
        fault = "is missing" if message.role == "tool" else "belongs to the role 'tool' only"
        raise BadRequest(f"{place}.tool_call_id {fault}", param=f"{place}.tool_call_id")


def _call(tokenizer: Tokenizer, call: MessageToolCall, place: str) -> dict[str, Any]:
    param = f"{place}.function.arguments"
    try:
        arguments = json.loads(call.function.arguments)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{param} is not valid JSON: {error}", param=param) from None
    if not isinstance(arguments, dict):
        raise BadRequest(f"{param} must be a JSON object", param=param)
    function = {"name": call.function.name, "arguments": arguments}
    return {"id": _shown_id(tokenizer, call.id), "type": "function", "function": function}


def _shown_id(tokenizer: Tokenizer, call_id: str) -> str:
    form = tool_form_of(tokenizer)
    return call_id if form is None else form.shown_call_id(call_id)
