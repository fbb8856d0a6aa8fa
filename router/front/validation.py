"""Checks what a client sent against a schema. Raises only errors of the tree, and names the field at fault."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from protocol.errors import BadRequest
from router.front.errors import MalformedJson, UnknownParameter, UnsupportedParameter

Body = TypeVar("Body", bound=BaseModel)


def parse_json(schema: type[Body], body: bytes) -> Body:
    """The checked body. Raises `BadRequest` that names the first field at fault."""
    try:
        return schema.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise _translate(error) from None


def parse_fields(schema: type[Body], fields: Mapping[str, Any]) -> Body:
    """The same for a body that arrived in another form than JSON."""
    try:
        return schema.model_validate(fields, strict=True)
    except ValidationError as error:
        raise _translate(error) from None


def _translate(error: ValidationError) -> BadRequest:
    return _refusal(error.errors(include_url=False, include_input=False)[0])


def _refusal(detail: ErrorDetails) -> BadRequest:
    param = param_name(detail["loc"])
    kind = detail["type"]
    if kind == "json_invalid":
        return MalformedJson(f"the body is not valid JSON: {detail['msg']}")
    if kind == "extra_forbidden":
        return UnknownParameter(f"unknown field {param!r}: this server does not know it, so remove it", param=param)
    if param is None:
        return BadRequest(f"the body must be a JSON object: {detail['msg']}")
    if kind == "unsupported_value":
        return UnsupportedParameter(f"{param}: {detail['msg']}", param=param)
    if kind == "missing":
        return BadRequest(f"{param} is missing", param=param)
    return BadRequest(f"{param}: {detail['msg']}", param=param)


def param_name(location: tuple[int | str, ...]) -> str | None:
    """A field's place as OpenAI writes it, such as `messages[0].content`; None for the body itself."""
    name = ""
    for step in location:
        if isinstance(step, int):
            name += f"[{step}]"
        else:
            name += f".{step}" if name else step
    return name or None
