"""Wants an API key before anything of a call is read. Health is open: probes ask without a key.

Everything else wants one: `Inference`, reflection, and methods that do not exist.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from protocol.errors import Unauthenticated
from router.front.api_keys import ApiKeys
from router.rpc.calls import AUTHORIZATION_KEY, Context, metadata_value, open_call, refuse_call

OPEN_PREFIX = "/grpc.health.v1.Health/"


class ApiKeyInterceptor(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # generic in the stubs only
    """Lets calls through that show one of the keys; the others end as `Unauthenticated`."""

    def __init__(self, keys: ApiKeys, retry_after_s: int) -> None:
        self._keys = keys
        self._retry_after_s = retry_after_s

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any]]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any]:
        """The handler of the call, or one that refuses it."""
        if handler_call_details.method.startswith(OPEN_PREFIX):
            return await continuation(handler_call_details)
        try:
            self._keys.check(metadata_value(handler_call_details.invocation_metadata, AUTHORIZATION_KEY))
        except Unauthenticated as error:
            return self._refusal(error)
        return await continuation(handler_call_details)

    def _refusal(self, error: Unauthenticated) -> grpc.RpcMethodHandler[Any, Any]:
        async def handle(requests: Any, context: Context) -> None:
            del requests
            await open_call(context, self._retry_after_s)
            await refuse_call(context, error, self._retry_after_s)

        # Stream to stream, because such a handler starts before any message is read. It fits calls of every kind.
        return grpc.stream_stream_rpc_method_handler(handle)
