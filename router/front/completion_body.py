"""The body of `POST /v1/completions`."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from protocol.request import MAX_LOGPROBS
from router.front.sampling_body import MAX_INT32, SamplingBody, only, wrong

Prompt = str | tuple[int, ...]


def _prompts(value: Any) -> tuple[Prompt, ...]:
    """A text, a list of texts, a list of token ids or a list of such lists, as a tuple of prompts."""
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list) or not value:
        raise wrong("must be a text, a list of texts, a list of token ids or a list of such lists, and not empty")
    if _are_token_ids(value):
        return (tuple(value),)
    if all(isinstance(item, str) for item in value):
        return tuple(value)
    if all(isinstance(item, list) and item and _are_token_ids(item) for item in value):
        return tuple(tuple(item) for item in value)
    raise wrong("mixes kinds, or holds an empty list: give texts only, token ids only, or lists of token ids only")


def _are_token_ids(value: list[Any]) -> bool:
    # Exactly int: a bool is no id. Said in this way because lists can be long.
    return {int}.issuperset(map(type, value))


class CompletionBody(SamplingBody):
    """`POST /v1/completions`. With `echo`, `max_tokens` may be 0: only the prompt is looked at then."""

    max_tokens: Annotated[int, Field(ge=0, le=MAX_INT32)] | None = None
    prompt: Annotated[tuple[Prompt, ...], BeforeValidator(_prompts)]
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    best_of: Annotated[int, Field(ge=1)] | None = None
    echo: bool | None = None
    suffix: Annotated[str | None, only("")] = None
