"""Reads a request's body within the limits and checks it against a schema. Raises only errors of the tree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from starlette.requests import ClientDisconnect, Request

from protocol.errors import BadRequest, Cancelled
from router.http.errors import BodyTimeout, BodyTooLarge, MalformedJson, UnknownParameter, UnsupportedParameter

SHORT_BODY_BYTES = 2048
"""Up to this length, parsing, templates and tokenisation together are fast enough for the event loop's own thread."""

Body = TypeVar("Body", bound=BaseModel)
Result = TypeVar("Result")


async def read_body(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body. Raises `BodyTooLarge` without reading on, `BodyTimeout` when it does not arrive in time."""
    declared = request.headers.get("content-length")
    if declared is not None and declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            async for part in request.stream():
                if len(body) + len(part) > max_bytes:
                    raise _too_large(max_bytes)
                body += part
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {timeout_s:g} s") from None
    except ClientDisconnect:
        raise Cancelled("the client went away before its body had arrived") from None
    return bytes(body)


async def off_loop_if_long(body: bytes, work: Callable[[], Result]) -> Result:
    """Runs `work`, whose cost grows with `body`: here when the body is short, else in a thread."""
    if len(body) <= SHORT_BODY_BYTES:
        return work()
    return await asyncio.to_thread(work)


def parse_body(schema: type[Body], body: bytes) -> Body:
    """The checked body. Raises `BadRequest` that names the first field at fault."""
    try:
        return schema.model_validate_json(body, strict=True)
    except ValidationError as error:
        raise _translate(error.errors(include_url=False, include_input=False)[0]) from None


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than this server's limit of {max_bytes} bytes")


def _translate(detail: ErrorDetails) -> BadRequest:
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
