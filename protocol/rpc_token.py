"""The cluster's token on calls between its processes: who lacks it is refused, whatever is called.

A token says that a caller belongs to the cluster. It travels in the clear: the network must be private.
"""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from protocol.errors import WrongClusterToken
from protocol.rpc_errors import refuse

TOKEN_KEY = "authorization"


def token_metadata(token: str) -> tuple[tuple[str, str], ...]:
    """What a call carries; empty for an empty token."""
    return ((TOKEN_KEY, f"Bearer {token}"),) if token else ()


class TokenInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Lets calls through that carry `token`. The others end as `WrongClusterToken`; their messages are never read."""

    def __init__(self, token: str) -> None:
        self._wanted = token_metadata(token)[0][1].encode()
        # Stream to stream, because such a handler starts before any message is read. It fits calls of every kind.
        self._refusal = grpc.stream_stream_rpc_method_handler(_refuse)

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler of the call, or the one that refuses it."""
        for key, value in handler_call_details.invocation_metadata or ():
            if key == TOKEN_KEY and hmac.compare_digest(_as_bytes(value), self._wanted):
                return await continuation(handler_call_details)
        return self._refusal


async def _refuse(requests: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    del requests
    await refuse(
        context, WrongClusterToken("the call carries no token of this cluster: it must come from its own router")
    )


def _as_bytes(value: str | bytes) -> bytes:
    return value if isinstance(value, bytes) else value.encode()
