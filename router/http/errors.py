"""The one place where errors become HTTP: status, OpenAI's error body, headers; and errors that only HTTP has."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from protocol.errors import (
    BadRequest,
    Cancelled,
    DeadlineExceeded,
    KvferryError,
    ModelNotFound,
    NotReady,
    OutOfBlocks,
    OutOfSlots,
    Overloaded,
    TransferError,
    Unauthenticated,
    WorkerUnavailable,
)

JSON_MEDIA_TYPE = "application/json"


class BodyTooLarge(BadRequest):
    """The body is longer than the server's limit; the rest of it was not read."""

    code = "body_too_large"


class BodyTimeout(BadRequest):
    """The body did not arrive in time."""

    code = "body_timeout"


class RouteNotFound(BadRequest):
    """No such path."""

    code = "not_found"


class WorkerNotFound(BadRequest):
    """No such worker."""

    code = "worker_not_found"


class Forbidden(BadRequest):
    """The caller may not do this from where it is, whatever key it has."""

    code = "forbidden"


class MethodNotAllowed(BadRequest):
    """The path exists, but not for this method."""

    code = "method_not_allowed"


_STATUS: dict[type[KvferryError], int] = {
    BodyTooLarge: 413,
    BodyTimeout: 408,
    RouteNotFound: 404,
    WorkerNotFound: 404,
    Forbidden: 403,
    MethodNotAllowed: 405,
    ModelNotFound: 404,
    BadRequest: 400,
    Unauthenticated: 401,
    Overloaded: 429,
    NotReady: 503,
    WorkerUnavailable: 503,
    TransferError: 503,
    OutOfBlocks: 503,
    OutOfSlots: 503,
    DeadlineExceeded: 504,
    Cancelled: 499,
    KvferryError: 500,
}
_TYPES = {401: "authentication_error", 429: "rate_limit_error"}
_RETRYABLE_STATUSES = frozenset({429, 503})


def status_of(error: KvferryError) -> int:
    """The HTTP status of an error: its own class's or that of the nearest ancestor in the table."""
    return next(_STATUS[kind] for kind in type(error).__mro__ if kind in _STATUS)


def error_body(error: KvferryError) -> dict[str, Any]:
    """OpenAI's error object."""
    status = status_of(error)
    kind = "server_error" if status >= 500 else _TYPES.get(status, "invalid_request_error")
    return {"error": {"message": error.message, "type": kind, "param": error.param, "code": error.code}}


def error_json(error: KvferryError) -> str:
    """The error object as one line of ASCII JSON, fit for an SSE event."""
    return json.dumps(error_body(error))


def error_response(error: KvferryError, retry_after_s: int, headers: dict[str, str] | None = None) -> Response:
    """A whole response for an error. `Retry-After` is set where a later try may succeed."""
    status = status_of(error)
    all_headers = dict(headers or {})
    if status in _RETRYABLE_STATUSES:
        all_headers["retry-after"] = str(retry_after_s)
    return Response(error_json(error), status, all_headers, JSON_MEDIA_TYPE)


def request_id_of(request: Request) -> str:
    """The id that `x-request-id` carries for this request, in and out."""
    return str(request.scope["state"]["request_id"])
