"""The body of `POST /v1/chat/completions`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from protocol.request import MAX_LOGPROBS
from router.front.chat_message import ChatMessage
from router.front.sampling_body import MAX_INT32, SamplingBody, Strict, only
from router.front.tools.body import MAX_TOOLS, FunctionName, Tool, ToolChoice

__all__ = ["ChatBody", "ChatMessage", "JsonSchema", "ResponseFormat"]


class JsonSchema(Strict):
    """A JSON schema that the answer satisfies, also when `strict` is false; without `schema` any object does."""

    name: FunctionName
    description: str | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Strict):
    """What the answer's text is: anything, any JSON object, or JSON that satisfies a schema."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatBody(SamplingBody):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_INT32)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool] | None, Field(max_length=MAX_TOOLS)] = None
    tool_choice: ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    functions: Annotated[list[Any] | None, only([])] = None
    function_call: Annotated[str | None, only("none", "auto")] = None
    modalities: Annotated[list[str] | None, only(["text"])] = None
    store: Annotated[bool | None, only(False)] = None
    metadata: Annotated[dict[str, str] | None, only({})] = None
    service_tier: Annotated[str | None, only("auto", "default")] = None
