"""JSON schemas of request bodies that say what the server really takes. Knows nothing of paths or answers.

Pydantic describes most fields. Where a field is checked by a function it cannot, so those are described here by hand;
what depends on this server's configuration is filled in. A body that its schema refuses is refused by the server. The
other way round some rules are beyond JSON Schema: see `UNSAID`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pydantic import BaseModel

from router.front.chat_body import ChatBody, ResponseFormat
from router.front.chat_message import ChatMessage
from router.front.completion_body import CompletionBody
from router.front.front import Front
from router.front.sampling_body import MAX_INT32, MAX_STOP_CHARS, MAX_STOP_STRINGS, SamplingBody
from router.front.tools.body import FunctionDefinition
from router.http.text_endpoints import DetokenizeBody, TokenizeBody

Schema = dict[str, Any]

UNSAID = (
    "Not said by the schemas, and refused with 400: prompts that leave no room for the answer or that make no tokens, "
    "`best_of` other than `n`, `max_tokens` other than `max_completion_tokens` where both are given, `min_tokens` beyond "
    "`max_tokens`, more answers in all than this server runs and queues, more log-probabilities of prompts than fit into "
    "a response, keys of `logit_bias` beyond the vocabulary, messages that the model's chat template refuses, tools for a "
    "model whose template knows none, two tools of one name, a `tool_choice` that is not among the tools, a call whose "
    "`arguments` are no JSON object, `response_format` beside tools, `ignore_eos` or `min_tokens`, JSON schemas that no "
    "answer can be held to, whole numbers written with a fraction (`1.0`), and text with half a surrogate pair."
)

NULL: Schema = {"type": "null"}


@dataclass(frozen=True, slots=True)
class Limits:
    """What this server's configuration and model make of the bodies' limits."""

    model: str
    max_tokens: int
    max_choices: int
    max_prompts: int
    max_token_id: int
    min_prompt_chars: int
    min_wire_budget: float

    @classmethod
    def of(cls, front: Front) -> Limits:
        """The limits of one router."""
        config = front.config
        return cls(
            model=config.served_model_name,
            max_tokens=min(config.max_total_tokens - 1, MAX_INT32),
            max_choices=min(config.max_choices, config.max_concurrent),
            max_prompts=config.max_concurrent + config.max_queue,
            max_token_id=front.vocab_size - 1,
            # Some models put a token before every text, so that an empty one is a prompt too.
            min_prompt_chars=0 if front.tokenizer.encode("") else 1,
            min_wire_budget=config.wire.least_budget,
        )


def nullable(schema: Schema) -> Schema:
    """The same, or null."""
    return {"anyOf": [schema, NULL]}


def one_of(*values: object) -> Schema:
    """Exactly these values, or null."""
    return {"enum": [*values, None]}


def _stop(_: Limits) -> Schema:
    text = {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS}
    return {"anyOf": [text, {"type": "array", "items": text, "maxItems": MAX_STOP_STRINGS}, NULL]}


def _prompt(limits: Limits) -> Schema:
    text = {"type": "string", "minLength": limits.min_prompt_chars}
    ids = _token_ids(limits) | {"minItems": 1, "maxItems": limits.max_tokens}
    several = {"type": "array", "minItems": 1, "maxItems": limits.max_prompts}
    return {"anyOf": [text, several | {"items": text}, ids, several | {"items": ids}]}


def _token_ids(limits: Limits) -> Schema:
    return {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": limits.max_token_id}}


def _logit_bias(_: Limits) -> Schema:
    # Which of these decimal numbers are token ids is beyond a pattern.
    return {"propertyNames": {"pattern": "^(0|[1-9][0-9]{0,9})$"}}


def _content(_: Limits) -> Schema:
    part = _object({"type": {"const": "text"}, "text": {"type": "string"}})
    return {"anyOf": [{"type": "string"}, {"type": "array", "items": part, "minItems": 1}, NULL]}


def _object(properties: Schema) -> Schema:
    """An object with these properties, all of them, and no others."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


_TOOL_CHOICE = {
    "anyOf": [
        one_of("none", "auto", "required"),
        _object({"type": {"const": "function"}, "function": _object({"name": {"type": "string"}})}),
    ]
}
_PARAMETERS = {"anyOf": [{"type": "object", "properties": {"type": {"const": "object"}}}, NULL]}


def _limit_of_tokens(low: int) -> Callable[[Limits], Schema]:
    return lambda limits: nullable({"type": "integer", "minimum": low, "maximum": limits.max_tokens})


def _model(limits: Limits) -> Schema:
    return one_of(limits.model)


def _always(schema: Schema) -> Callable[[Limits], Schema]:
    return lambda _: schema


FieldSchemas = Mapping[str, Callable[[Limits], Schema]]

FIELD_SCHEMAS: Mapping[type[BaseModel], FieldSchemas] = {
    SamplingBody: {
        "model": _model,
        "max_tokens": _limit_of_tokens(1),
        "min_tokens": _limit_of_tokens(0),
        "n": lambda limits: nullable({"type": "integer", "minimum": 1, "maximum": limits.max_choices}),
        "stop": _stop,
        "kv_wire_budget": lambda limits: nullable({"type": "number", "minimum": limits.min_wire_budget, "maximum": 1}),
    },
    CompletionBody: {
        "prompt": _prompt,
        "max_tokens": _limit_of_tokens(0),
        "suffix": _always(one_of("")),
    },
    ChatBody: {
        "max_completion_tokens": _limit_of_tokens(1),
        "tool_choice": _always(_TOOL_CHOICE),
        "functions": _always(one_of([])),
        "function_call": _always(one_of("none", "auto")),
        "modalities": _always(one_of(["text"])),
        "store": _always(one_of(False)),
        "metadata": _always(one_of({})),
        "service_tier": _always(one_of("auto", "default")),
    },
    ChatMessage: {
        "content": _content,
        "refusal": _always(NULL),
        "function_call": _always(NULL),
        "annotations": _always(one_of([])),
        "audio": _always(NULL),
    },
    FunctionDefinition: {"parameters": _always(_PARAMETERS)},
    TokenizeBody: {"model": _model},
    DetokenizeBody: {"model": _model, "tokens": _token_ids},
}
"""Instead of what pydantic says of a field."""

ADDITIONS: Mapping[type[BaseModel], FieldSchemas] = {SamplingBody: {"logit_bias": _logit_bias}}
"""Beside what pydantic says of a field that is not null."""


def _is_given(field: str, schema: Schema) -> Schema:
    return {"properties": {field: schema}, "required": [field]}


_STREAMED = _is_given("stream", {"const": True})
_HAS_MESSAGES = _is_given("messages", {"type": "array"})
_SAMPLING_RULES = [
    {"if": _is_given("stream_options", {"type": "object"}), "then": _STREAMED},
    {"if": _is_given("prompt_logprobs", {"type": "integer"}), "then": {"not": _STREAMED}},
]
_PROMPT_ONLY = {"properties": {"echo": {"const": True}, "min_tokens": one_of(0)}, "required": ["echo"]}
RULES: Mapping[type[BaseModel], list[Schema]] = {
    CompletionBody: [*_SAMPLING_RULES, {"if": _is_given("max_tokens", {"const": 0}), "then": _PROMPT_ONLY}],
    ChatBody: [
        *_SAMPLING_RULES,
        {"if": _is_given("top_logprobs", {"type": "integer"}), "then": _is_given("logprobs", {"const": True})},
    ],
    ChatMessage: [
        {
            "if": _is_given("tool_calls", {"type": "array", "minItems": 1}),
            "then": _is_given("role", {"const": "assistant"}),
            "else": _is_given("content", {"not": NULL}),
        },
        {
            "if": _is_given("tool_call_id", {"type": "string"}),
            "then": _is_given("role", {"const": "tool"}),
            "else": {"not": _is_given("role", {"const": "tool"})},
        },
    ],
    ResponseFormat: [
        {
            "if": _is_given("type", {"const": "json_schema"}),
            "then": _is_given("json_schema", {"type": "object"}),
            "else": {"properties": {"json_schema": NULL}},
        }
    ],
    TokenizeBody: [
        {"oneOf": [_is_given("prompt", {"type": "string"}), _HAS_MESSAGES]},
        {"if": _is_given("add_generation_prompt", {"type": "boolean"}), "then": _HAS_MESSAGES},
        {"if": _is_given("tools", {"type": "array"}), "then": _HAS_MESSAGES},
    ],
}
"""What holds between the fields of a body."""


def told(model: type[BaseModel], schema: Schema, limits: Limits) -> Schema:
    """Pydantic's schema of a body, corrected."""
    properties = cast("dict[str, Schema]", schema["properties"])
    for name, before in properties.items():
        description = {"description": before["description"]} if "description" in before else {}
        if (instead := _find(FIELD_SCHEMAS, model, name)) is not None:
            properties[name] = instead(limits) | description
        elif (beside := _find(ADDITIONS, model, name)) is not None:
            properties[name] = before | beside(limits)
    rules = RULES.get(model)
    return schema | {"allOf": rules} if rules else schema


def described_by_hand(model: type[BaseModel], field: str) -> bool:
    """Whether a field's schema is written here."""
    return _find(FIELD_SCHEMAS, model, field) is not None


def _find(
    table: Mapping[type[BaseModel], FieldSchemas], model: type[BaseModel], field: str
) -> Callable[[Limits], Schema] | None:
    owners = (owner for owner in model.__mro__ if owner in table)
    return next((table[owner][field] for owner in owners if field in table[owner]), None)
