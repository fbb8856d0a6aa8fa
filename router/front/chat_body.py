"""The body of `POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from protocol.request import MAX_LOGPROBS
from router.front.sampling_body import MAX_INT32, SamplingBody, Strict, only, wrong


def _content(value: Any) -> str:
    """The text of a message: a string, or the text parts joined."""
    if isinstance(value, str):
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

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_content)]
    name: str | None = None
    refusal: Annotated[str | None, only()] = None
    tool_calls: Annotated[list[Any] | None, only([])] = None
    function_call: Annotated[dict[str, Any] | None, only()] = None
    annotations: Annotated[list[Any] | None, only([])] = None
    audio: Annotated[dict[str, Any] | None, only()] = None


class ChatBody(SamplingBody):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_INT32)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: Annotated[dict[str, Any] | None, only({"type": "text"})] = None
    tools: Annotated[list[Any] | None, only([])] = None
    tool_choice: Annotated[str | None, only("none", "auto")] = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[list[str] | None, only(["text"])] = None
    store: Annotated[bool | None, only(False)] = None
    metadata: Annotated[dict[str, str] | None, only({})] = None
    service_tier: Annotated[str | None, only("auto", "default")] = None
