"""The schemas of request bodies in the OpenAPI document agree with what the server takes."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator
from pydantic import AfterValidator, BaseModel, BeforeValidator, PlainValidator, WrapValidator

from protocol.errors import BadRequest
from router.front.chat_body import ChatBody
from router.front.completion_body import CompletionBody
from router.front.validation import parse_json
from router.http.openapi.body_schemas import described_by_hand
from router.http.text_endpoints import DetokenizeBody, TokenizeBody
from tests.router.http.test_bodies import ANY_JSON
from tests.support.http_front import FrontUnderTest

PATHS: dict[type[BaseModel], str] = {
    CompletionBody: "/v1/completions",
    ChatBody: "/v1/chat/completions",
    TokenizeBody: "/tokenize",
    DetokenizeBody: "/detokenize",
}
BASES: dict[type[BaseModel], dict[str, Any]] = {
    CompletionBody: {"prompt": "hi"},
    ChatBody: {"messages": [{"role": "user", "content": "hi"}]},
    TokenizeBody: {"prompt": "hi"},
    DetokenizeBody: {"tokens": [65]},
}
FUNCTION_CHECKS = (AfterValidator, BeforeValidator, PlainValidator, WrapValidator)
TEXT_PART = {"type": "text", "text": "a"}
FUNCTION = {"type": "function", "function": {"name": "a"}}
NEAR: list[Any] = [
    *(None, True, False, 0, 1, -1, 2, 0.5, 2.5, 3, 63, 64, 100.5, 101, 128, 129, 2**31, 2**63),
    *("", "a", "a" * 1025, "none", "auto", "bytes-1b", "text"),
    *([], [1], ["a"], [[1]], [[]], ["a", 1], [256], [257], [-1], [True], ["a"] * 5, ["text"]),
    *({}, {"a": 1}, {"1": 1}, {"01": 1}, {"1": 200}, {"type": "text"}, {"include_usage": True}),
    *([{"role": "user", "content": "a"}], [{"role": "user"}], [{"role": "assistant", "content": None}]),
    *([{"role": "user", "content": [TEXT_PART]}], [{"role": "user", "content": [TEXT_PART | {"b": 1}]}]),
    *([{"role": "tool", "content": "a"}], [{"role": "user", "content": "a", "tool_call_id": "b"}]),
    *({"type": "json_object"}, {"type": "json_schema"}, {"type": "json_schema", "json_schema": {"name": "a"}}),
    *(FUNCTION, [FUNCTION], [{"type": "function", "function": {"name": "a", "parameters": {"type": "array"}}}]),
]
"""Values that are right, or nearly right, for some field."""


@pytest.fixture(scope="module")
def front() -> FrontUnderTest:
    """One application for all examples."""
    return FrontUnderTest()


@pytest.fixture(scope="module")
def schemas(front: FrontUnderTest) -> dict[str, Draft202012Validator]:
    """Validators of the document's schemas by name."""
    components = asyncio.run(front.get("/openapi.json")).json()["components"]
    return {
        name: Draft202012Validator({"$ref": f"#/components/schemas/{name}", "components": components})
        for name in components["schemas"]
    }


@pytest.mark.parametrize("body", PATHS)
def test_fields_that_functions_check_are_described_by_hand(body: type[BaseModel]) -> None:
    """Pydantic knows no schema for what a function checks, so each such field of each body has one in `FIELD_SCHEMAS`."""
    for model in _with_nested(body):
        checked = {
            name for name, field in model.model_fields.items() if _has_function((field.annotation, field.metadata))
        }
        checked |= {
            name for each in model.__pydantic_decorators__.field_validators.values() for name in each.info.fields
        }
        assert not {name for name in checked if not described_by_hand(model, name)}


def _bodies() -> st.SearchStrategy[tuple[type[BaseModel], Any]]:
    """A body with some fields replaced: by values of which many are nearly right, or by anything."""

    def of(model: type[BaseModel]) -> st.SearchStrategy[tuple[type[BaseModel], Any]]:
        names = st.sampled_from(sorted(model.model_fields)) | st.text(max_size=3)
        changes = st.dictionaries(names, st.sampled_from(NEAR) | ANY_JSON, max_size=4)
        return st.tuples(st.just(model), changes.map(lambda more: BASES[model] | more) | ANY_JSON)

    return st.sampled_from(list(PATHS)).flatmap(of)


@given(case=_bodies())
async def test_any_json(
    front: FrontUnderTest, schemas: dict[str, Draft202012Validator], case: tuple[type[BaseModel], Any]
) -> None:
    """What a schema allows is a valid body, and what it forbids is refused."""
    model, body = case
    await check_agreement(front, schemas[model.__name__], model, body)


@pytest.mark.parametrize("model", PATHS)
async def test_each_field(
    front: FrontUnderTest, schemas: dict[str, Draft202012Validator], model: type[BaseModel]
) -> None:
    """The same for every field by itself, with values around its limits."""
    for name, field in model.model_fields.items():
        for value in NEAR:
            await check_agreement(front, schemas[model.__name__], model, BASES[model] | {field.alias or name: value})


async def check_agreement(
    front: FrontUnderTest, schema: Draft202012Validator, model: type[BaseModel], body: Any
) -> None:
    """A schema's verdict on a body is the server's, but for whole numbers such as 1.0 and what the schema cannot say."""
    if not is_plain(body):
        return
    raw = json.dumps(body).encode()
    if schema.is_valid(body):
        parse_json(model, raw)
        return
    try:
        parse_json(model, raw)
    except BadRequest:
        return
    assert (await front.post(PATHS[model], raw)).status_code in (400, 404), body


def is_plain(value: Any) -> bool:
    """Whether JSON can say it, and has no whole number with a fraction, which is an integer for JSON Schema only."""
    if isinstance(value, dict):
        return all(map(is_plain, value.values()))
    if isinstance(value, list):
        return all(map(is_plain, value))
    return not isinstance(value, float) or (math.isfinite(value) and not value.is_integer())


def _has_function(annotation: Any) -> bool:
    """Whether a check by a function is somewhere in a type."""
    if isinstance(annotation, FUNCTION_CHECKS):
        return True
    parts = annotation if isinstance(annotation, (tuple, list)) else get_args(annotation)
    return any(map(_has_function, parts))


def _with_nested(model: type[BaseModel]) -> set[type[BaseModel]]:
    """The model and all models that its fields hold."""
    found: set[type[BaseModel]] = set()
    waiting: list[Any] = [model]
    while waiting:
        each = waiting.pop()
        if isinstance(each, type) and issubclass(each, BaseModel) and get_origin(each) is None:
            waiting += [] if each in found else [field.annotation for field in each.model_fields.values()]
            found.add(each)
        waiting += get_args(each)
    return found
