"""Reads a request's body within the limits. Raises only errors of the tree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from starlette.requests import ClientDisconnect, Request

from protocol.errors import Cancelled
from router.http.errors import BodyTimeout, BodyTooLarge

SHORT_BODY_BYTES = 2048
"""Up to this length, parsing, templates and tokenisation together are fast enough for the event loop's own thread."""
_SCHEMA_MARKS = (b"response_format", b"tools", b"\\u")
"""One of these is in every body with a schema: a field's name is written out or escaped."""

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
    """Runs `work`, whose cost grows with `body`: here when the body is short, else in a thread.

    Short bodies with schemas can ask for much work: a schema of 2 KiB may take a third of a second to check.
    """
    if len(body) <= SHORT_BODY_BYTES and not any(mark in body for mark in _SCHEMA_MARKS):
        return work()
    return await asyncio.to_thread(work)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"the body is longer than this server's limit of {max_bytes} bytes")
