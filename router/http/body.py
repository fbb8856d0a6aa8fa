"""Reads a request's body within the limits. Raises only errors of the tree."""

from __future__ import annotations

import asyncio

from starlette.requests import Request

from protocol.errors import Cancelled
from router.http.errors import BodyTimeout, BodyTooLarge

_SCHEMA_MARKS = (b"response_format", b"tools", b"\\u")
"""One of these is in every body with a schema: a field's name is written out or escaped."""


async def read_body(request: Request, max_bytes: int, timeout_s: float) -> bytes:
    """The whole body. Raises `BodyTooLarge` without reading on, `BodyTimeout` when it does not arrive in time."""
    declared = request.headers.get("content-length")
    if declared is not None and declared.isdecimal() and int(declared) > max_bytes:
        raise _too_large(max_bytes)
    body = bytearray()
    try:
        async with asyncio.timeout(timeout_s):
            has_more = True
            while has_more:
                message = await request.receive()
                if message["type"] == "http.disconnect":
                    raise Cancelled("the client went away before its body had arrived")
                part = message.get("body", b"")
                if len(body) + len(part) > max_bytes:
                    raise _too_large(max_bytes)
                body += part
                has_more = message.get("more_body", False)
    except TimeoutError:
        raise BodyTimeout(f"the body did not arrive within {timeout_s:g} s") from None
    return bytes(body)


def may_have_schema(body: bytes) -> bool:
    """Whether a body may hold a schema. False for most that have none."""
    return any(mark in body for mark in _SCHEMA_MARKS)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than this server's limit of {max_bytes} bytes")
