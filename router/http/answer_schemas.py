"""The shapes of what HTTP clients are answered, for the OpenAPI document and for tests that hold real answers against them.

Answers are not built from these: chunks are written as ready-made JSON. A field that is not written here does not exist.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Count = Annotated[int, Field(ge=0)]
Logprob = Annotated[float, Field(le=0)]
Finish = Literal["stop", "length"]
ChatFinish = Literal["stop", "length", "tool_calls"]
ABSENT: Any = Field(default=None)
"""The default of fields that are either there and not null, or not there at all."""


class Shape(BaseModel):
    """Has its own fields only."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class PromptTokensDetails(Shape):
    """`cached_tokens` of the prompts were not computed by the workers that read them, but found in their prefix caches."""

    cached_tokens: Count


class UsageShape(Shape):
    """Tokens of all choices; a prompt counts once."""

    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptTokensDetails


class CompletionLogprobs(Shape):
    """Log-probabilities of a text completion: lists with an entry for each token. An echoed prompt's first has none."""

    tokens: list[str]
    token_logprobs: list[Logprob | None]
    top_logprobs: list[dict[str, Logprob] | None]
    text_offset: list[Count]


class PromptTokenLogprob(Shape):
    """The log-probability of a token at one place of the prompt."""

    logprob: Logprob
    decoded_token: str


PromptLogprobs = list[dict[str, PromptTokenLogprob] | None]
"""By token id: the likeliest tokens and the prompt's own, for each token of the prompt but its first."""


class CompletionChoice(Shape):
    """One answer to one prompt, whole."""

    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish
    prompt_logprobs: PromptLogprobs = ABSENT


class CompletionChunkChoice(Shape):
    """What a chunk adds to an answer. `finish_reason` is set in the last chunk of a choice."""

    index: Count
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: Finish | None


class Completion(Shape):
    """A text completion, whole."""

    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    choices: list[CompletionChoice]
    usage: UsageShape


class CompletionChunk(Shape):
    """One event of a streamed text completion. `usage` is there when it was asked for, and set in the last chunk."""

    id: str
    object: Literal["text_completion"]
    created: Count
    model: str
    choices: list[CompletionChunkChoice]
    usage: UsageShape | None = None


class ChatToken(Shape):
    """A token's text and bytes, and its log-probability."""

    token: str
    logprob: Logprob
    bytes: list[Annotated[int, Field(ge=0, le=255)]]


class ChatTokenLogprob(ChatToken):
    """A generated token and the likeliest ones in its place."""

    top_logprobs: list[ChatToken]


class ChatLogprobs(Shape):
    """Log-probabilities of a chat completion, an entry for each token."""

    content: list[ChatTokenLogprob]
    refusal: None


class CalledFunctionShape(Shape):
    """The function of a call. `arguments` is a JSON object as text."""

    name: str
    arguments: str


class ToolCallShape(Shape):
    """A call that the model wants made."""

    id: str
    type: Literal["function"]
    function: CalledFunctionShape


class ToolCallDelta(ToolCallShape):
    """A call, whole, within a streamed answer. Calls of a choice are counted from 0."""

    index: Count


class AssistantMessage(Shape):
    """The model's turn. `content` is null where there are calls and no text beside them."""

    role: Literal["assistant"]
    content: str | None
    refusal: None
    tool_calls: Annotated[list[ToolCallShape], Field(min_length=1)] = ABSENT


class ChatChoice(Shape):
    """One answer, whole."""

    index: Count
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish


class ChatCompletion(Shape):
    """A chat completion, whole."""

    id: str
    object: Literal["chat.completion"]
    created: Count
    model: str
    choices: list[ChatChoice]
    usage: UsageShape
    prompt_logprobs: PromptLogprobs = ABSENT


class ChatDelta(Shape):
    """What a chunk adds to the model's turn. `role` comes with the first chunk of a choice."""

    role: Literal["assistant"] = ABSENT
    content: str = ABSENT
    tool_calls: Annotated[list[ToolCallDelta], Field(min_length=1)] = ABSENT


class ChatChunkChoice(Shape):
    """A chunk's part of one answer. `finish_reason` is set in the last chunk of a choice."""

    index: Count
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None


class ChatCompletionChunk(Shape):
    """One event of a streamed chat completion. `usage` is there when it was asked for, and set in the last chunk."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: Count
    model: str
    choices: list[ChatChunkChoice]
    usage: UsageShape | None = None
