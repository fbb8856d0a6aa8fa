"""What every call of the public API has: a request id, metadata in and out, and one way to be refused."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from protocol.errors import BadRequest, KvferryError
from protocol.ids import new_request_id
from protocol.rpc_errors import refuse, status_of
from router.front.request_ids import HEADER, checked_request_id

PARAM_KEY = "kvferry-param"
RETRY_KEY = "retry-after-s"
AUTHORIZATION_KEY = "authorization"
_RETRYABLE = frozenset({grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE})

Context = grpc.aio.ServicerContext[Any, Any]


async def open_call(context: Context, retry_after_s: int) -> str:
    """Sends the call's request id back at once and returns it. Refuses a call whose own id is none."""
    sent = metadata_value(context.invocation_metadata(), HEADER)
    try:
        request_id = checked_request_id(sent)
    except BadRequest as error:
        await context.send_initial_metadata(((HEADER, new_request_id()),))
        await refuse_call(context, error, retry_after_s)
    await context.send_initial_metadata(((HEADER, request_id),))
    return request_id


async def refuse_call(context: Context, error: KvferryError, retry_after_s: int) -> NoReturn:
    """Ends a call with `error`, which says the field at fault and when to try again, if it knows."""
    metadata: list[tuple[str, str]] = []
    if error.param is not None:
        metadata.append((PARAM_KEY, _printable(error.param)))
    if status_of(error) in _RETRYABLE:
        metadata.append((RETRY_KEY, str(retry_after_s)))
    await refuse(context, error, tuple(metadata))


def metadata_value(metadata: Any, wanted: str) -> str | None:
    """The first value under a name, None when there is none."""
    for key, value in metadata or ():
        if key == wanted:
            return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return None


def _printable(text: str) -> str:
    """What metadata can carry. Names of a client's own, inside JSON text, may hold anything."""
    return "".join(char if " " <= char <= "~" else ascii(char)[1:-1] for char in text)
