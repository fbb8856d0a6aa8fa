"""The bodies that clients may send. What is not written here is refused by name; nothing is ignored.

Fields of OpenAI's API that this server does not implement are accepted only with the value that changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from protocol.request import MAX_LOGPROBS, MAX_SEED

MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 1024
MAX_TEMPERATURE = 2.0
MAX_INT32 = 2**31 - 1

Prompt = str | tuple[int, ...]


def _only(*neutral: object) -> AfterValidator:
    """Accepts None and the values that ask for nothing."""

    def check(value: Any) -> Any:
        if value is None or value in neutral:
            return value
        allowed = ", ".join(repr(choice) for choice in neutral)
        raise PydanticCustomError("unsupported_value", "only {allowed} is supported", {"allowed": allowed or "null"})

    return AfterValidator(check)


def _wrong(text: str) -> PydanticCustomError:
    return PydanticCustomError("wrong_value", "{text}", {"text": text})


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """A text, a list of texts, a list of token ids or a list of such lists, as a tuple of prompts."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise _wrong("must be a text, a list of texts, a list of token ids or a list of such lists, and not empty")
    if _are_token_ids(value):
        return (tuple(value),)
    if all(isinstance(item, str) for item in value):
        return tuple(value)
    if all(isinstance(item, list) and item and _are_token_ids(item) for item in value):
        return tuple(tuple(item) for item in value)
    raise _wrong("mixes kinds, or holds an empty list: give texts only, token ids only, or lists of token ids only")


def _are_token_ids(value: list[Any]) -> bool:
    # Exactly int: a bool is no id. Said in this way because lists can be long.
    return {int}.issuperset(map(type, value))


def _stop_strings(value: Any) -> tuple[str, ...]:
    strings: Sequence[Any] = [value] if isinstance(value, str) else value
    if value is None:
        return ()
    if not isinstance(strings, list) or not all(isinstance(item, str) for item in strings):
        raise _wrong("must be a text or a list of texts")
    if len(strings) > MAX_STOP_STRINGS:
        raise _wrong(f"has {len(strings)} texts; at most {MAX_STOP_STRINGS} are allowed")
    if any(not 1 <= len(item) <= MAX_STOP_CHARS for item in strings):
        raise _wrong(f"each text must have 1 to {MAX_STOP_CHARS} characters")
    return tuple(strings)


def _content(value: Any) -> str:
    """The text of a message: a string, or the text parts joined."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value:
        raise _wrong("must be a text or a list of parts of type 'text'")
    for part in value:
        if not isinstance(part, dict) or part.keys() != {"type", "text"} or part["type"] != "text":
            raise PydanticCustomError("unsupported_value", "only parts with type 'text' and a text are supported")
        if not isinstance(part["text"], str):
            raise _wrong("the text of a part must be a string")
    return "".join(part["text"] for part in value)


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class StreamOptions(_Strict):
    """`include_usage` asks for one more chunk, with the usage and no choices."""

    include_usage: bool = False


class SamplingBody(_Strict):
    """Fields that both endpoints share. None stands for the default."""

    model: str | None = None
    temperature: Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, le=MAX_INT32)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_tokens: Annotated[int, Field(ge=1, le=MAX_INT32)] | None = None
    seed: Annotated[int, Field(ge=0, le=MAX_SEED)] | None = None
    stop: Annotated[tuple[str, ...], BeforeValidator(_stop_strings)] = ()
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    ignore_eos: bool | None = None
    user: str | None = None
    n: Annotated[int | None, _only(1)] = None
    presence_penalty: Annotated[float | None, _only(0)] = None
    frequency_penalty: Annotated[float | None, _only(0)] = None
    logit_bias: Annotated[dict[str, Any] | None, _only({})] = None


class CompletionBody(SamplingBody):
    """`POST /v1/completions`."""

    prompt: Annotated[tuple[Prompt, ...], BeforeValidator(_prompts)]
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int | None, _only(1)] = None
    echo: Annotated[bool | None, _only(False)] = None
    suffix: Annotated[str | None, _only("")] = None


class ChatMessage(_Strict):
    """One turn of the conversation. Null fields come back with the answers that clients append to their messages."""

    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[str, BeforeValidator(_content)]
    name: str | None = None
    refusal: Annotated[str | None, _only()] = None
    tool_calls: Annotated[list[Any] | None, _only([])] = None
    function_call: Annotated[dict[str, Any] | None, _only()] = None
    annotations: Annotated[list[Any] | None, _only([])] = None
    audio: Annotated[dict[str, Any] | None, _only()] = None


class ChatBody(SamplingBody):
    """`POST /v1/chat/completions`."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1, le=MAX_INT32)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: Annotated[dict[str, Any] | None, _only({"type": "text"})] = None
    tools: Annotated[list[Any] | None, _only([])] = None
    tool_choice: Annotated[str | None, _only("none", "auto")] = None
    parallel_tool_calls: bool | None = None
    modalities: Annotated[list[str] | None, _only(["text"])] = None
    store: Annotated[bool | None, _only(False)] = None
    metadata: Annotated[dict[str, str] | None, _only({})] = None
    service_tier: Annotated[str | None, _only("auto", "default")] = None
