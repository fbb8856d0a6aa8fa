"""The standard health service, `grpc.health.v1.Health`: says what the generator's readiness is whenever it is asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import grpc
from grpc_health.v1.health_pb2 import (
    HealthCheckRequest,
    HealthCheckResponse,
    HealthListRequest,
    HealthListResponse,
)
from grpc_health.v1.health_pb2_grpc import HealthServicer

from protocol.errors import Overloaded
from router.rpc.calls import Context, refuse_call

POLL_S = 1.0
"""How long a change may go unnoticed by those who watch."""
MAX_WATCHERS = 256
"""Watching needs no key and has no end: more would let strangers take every place that the server has for calls."""


class LiveHealth(HealthServicer):  # type: ignore[misc]  # its stubs know no asyncio
    """Answers for `services` and for the server as a whole, whose name is empty: all are ready when `is_ready` says so."""

    def __init__(self, is_ready: Callable[[], bool], services: tuple[str, ...], retry_after_s: int) -> None:
        self._is_ready = is_ready
        self._services = ("", *services)
        self._retry_after_s = retry_after_s
        self._num_watchers = 0
        self._stopping = asyncio.Event()

    async def Check(self, request: HealthCheckRequest, context: Context) -> HealthCheckResponse:
        """The present status; `NOT_FOUND` for a service that is not there."""
        if request.service not in self._services:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no such service: {request.service}")
        return self._status()

    async def List(self, request: HealthListRequest, context: Context) -> HealthListResponse:
        """The present status of everything."""
        del request, context
        return HealthListResponse(statuses={service: self._status() for service in self._services})

    async def Watch(self, request: HealthCheckRequest, context: Context) -> None:
        """The status now and whenever it is another, until the client or the server ends."""
        if self._num_watchers >= MAX_WATCHERS:
            await refuse_call(context, Overloaded(f"{MAX_WATCHERS} clients watch already"), self._retry_after_s)
        self._num_watchers += 1
        try:
            await self._watch(request.service, context)
        finally:
            self._num_watchers -= 1

    def stop(self) -> None:
        """Nothing is ready from now on, and those who watch are told so and let go."""
        self._stopping.set()

    async def _watch(self, service: str, context: Context) -> None:
        told = None
        while True:
            is_last = self._stopping.is_set()
            status = self._status() if service in self._services else _UNKNOWN
            if status != told:
                await context.write(status)
                told = status
            if is_last:
                return
            try:
                async with asyncio.timeout(POLL_S):
                    await self._stopping.wait()
            except TimeoutError:
                continue

    def _status(self) -> HealthCheckResponse:
        is_ready = not self._stopping.is_set() and self._is_ready()
        return _SERVING if is_ready else _NOT_SERVING


_SERVING = HealthCheckResponse(status=HealthCheckResponse.SERVING)
_NOT_SERVING = HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING)
_UNKNOWN = HealthCheckResponse(status=HealthCheckResponse.SERVICE_UNKNOWN)
