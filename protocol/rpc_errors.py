"""The error tree across gRPC: status codes for people and tools, the exact error in trailing metadata for kvferry."""

from __future__ import annotations

from typing import Any, NoReturn

import grpc

from protocol.errors import (
    BadRequest,
    Blame,
    Cancelled,
    DeadlineExceeded,
    KvferryError,
    ModelNotFound,
    Overloaded,
    Unauthenticated,
    WorkerUnavailable,
    WrongClusterToken,
    by_code,
)

CODE_KEY = "kvferry-code"

_STATUS: dict[type[KvferryError], grpc.StatusCode] = {
    ModelNotFound: grpc.StatusCode.NOT_FOUND,
    BadRequest: grpc.StatusCode.INVALID_ARGUMENT,
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    Cancelled: grpc.StatusCode.CANCELLED,
    DeadlineExceeded: grpc.StatusCode.DEADLINE_EXCEEDED,
    Unauthenticated: grpc.StatusCode.UNAUTHENTICATED,
    WrongClusterToken: grpc.StatusCode.UNAUTHENTICATED,
    WorkerUnavailable: grpc.StatusCode.UNAVAILABLE,
}


def status_of(error: KvferryError) -> grpc.StatusCode:
    """The gRPC status code of an error: its nearest class's, else by its blame and whether to retry."""
    for kind in type(error).__mro__:
        if kind in _STATUS:
            return _STATUS[kind]
    if error.retryable:
        return grpc.StatusCode.UNAVAILABLE
    return grpc.StatusCode.INVALID_ARGUMENT if error.blame is Blame.CLIENT else grpc.StatusCode.INTERNAL


async def refuse(
    context: grpc.aio.ServicerContext[Any, Any], error: KvferryError, metadata: tuple[tuple[str, str], ...] = ()
) -> NoReturn:
    """Ends a call with `error`; `metadata` tells more about it."""
    await context.abort(status_of(error), error.message, ((CODE_KEY, error.code), *metadata))
    raise error  # not reached: `abort` raises


def from_rpc(error: grpc.RpcError, peer: str) -> KvferryError:
    """The error that a peer ended a call with; `WorkerUnavailable` when the call did not reach it."""
    code, details = _code_and_details(error)
    metadata = dict(getattr(error, "trailing_metadata", tuple)() or ())
    if CODE_KEY in metadata:
        return by_code(str(metadata[CODE_KEY]))(details)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return DeadlineExceeded(f"{peer} did not answer in time")
    # CANCELLED without an error of ours is the peer's doing too: a server that stops. Whoever cancels here sees no RpcError.
    return WorkerUnavailable(f"{peer}: {details or code}")


def _code_and_details(error: grpc.RpcError) -> tuple[grpc.StatusCode, str]:
    if isinstance(error, grpc.aio.AioRpcError):
        return error.code(), error.details() or ""
    return grpc.StatusCode.UNKNOWN, str(error)
