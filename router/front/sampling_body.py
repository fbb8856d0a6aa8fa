"""Fields that the bodies of both endpoints share. What is not written here is refused by name; nothing is ignored.

Fields of OpenAI's API that this server does not implement are accepted only with the value that changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError

from protocol.request import (
    MAX_CACHE_SALT_CHARS,
    MAX_CHOICES,
    MAX_LOGIT_BIASES,
    MAX_LOGPROBS,
    MAX_PRIORITY,
    MAX_SEED,
)

MAX_STOP_STRINGS = 4
MAX_STOP_CHARS = 1024
MAX_TEMPERATURE = 2.0
MAX_REPETITION_PENALTY = 100.0
MAX_INT32 = 2**31 - 1

Bias = Annotated[float, Field(ge=-100, le=100)]


def only(*neutral: object) -> AfterValidator:
    """Accepts None and the values that ask for nothing."""

    def check(value: Any) -> Any:
        if value is None or value in neutral:
            return value
        allowed = ", ".join(repr(choice) for choice in neutral)
        raise PydanticCustomError("unsupported_value", "only {allowed} is supported", {"allowed": allowed or "null"})

    return AfterValidator(check)


def wrong(text: str) -> PydanticCustomError:
    """A refusal that says `text` after the field's name."""
    return PydanticCustomError("wrong_value", "{text}", {"text": text})


def _stop_strings(value: Any) -> tuple[str, ...]:
    strings: Sequence[Any] = [value] if isinstance(value, str) else value
    if value is None:
        return ()
    if not isinstance(strings, list) or not all(isinstance(item, str) for item in strings):
        raise wrong("must be a text or a list of texts")
    if len(strings) > MAX_STOP_STRINGS:
        raise wrong(f"has {len(strings)} texts; at most {MAX_STOP_STRINGS} are allowed")
    if any(not 1 <= len(item) <= MAX_STOP_CHARS for item in strings):
        raise wrong(f"each text must have 1 to {MAX_STOP_CHARS} characters")
    return tuple(strings)


class Strict(BaseModel):
    """Knows its own fields only, and converts nothing."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class StreamOptions(Strict):
    """`include_usage` asks for one more chunk, with the usage and no choices."""

    include_usage: bool = False


class SamplingBody(Strict):
    """Fields that both endpoints share. None stands for the default. `user` is accepted and has no effect."""

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
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    min_tokens: Annotated[int, Field(ge=0, le=MAX_INT32)] | None = None
    presence_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Field(ge=-2, le=2)] | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=MAX_REPETITION_PENALTY)] | None = None
    logit_bias: Annotated[dict[str, Bias], Field(max_length=MAX_LOGIT_BIASES)] | None = None
    prompt_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    kv_wire_budget: Annotated[float, Field(gt=0, le=1)] | None = None
    priority: Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)] | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=MAX_CACHE_SALT_CHARS)] | None = None
