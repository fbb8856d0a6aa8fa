"""The router's own worker clients with nothing under them: a call is a call of the service in the same event loop.

What is left out is gRPC alone; messages are built and read as ever.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import grpc

from benchmarks.door.workers import FakeDecode, FakePrefill, fake_worker
from protocol import kvferry_worker_pb2 as pb
from protocol.errors import by_code
from protocol.rpc_errors import CODE_KEY
from router.fleet.fleet import Connector, Fleet, WorkerTarget
from router.fleet.grpc_clients import GrpcDecodeClient, GrpcPrefillClient
from router.fleet.question import RoutingRules
from router.reservations.contract import Reservations

Metadata = Sequence[tuple[str, str]]
NOWHERE = "127.0.0.1:9"
"""Where the channels would lead: they are never used."""


@dataclass(frozen=True, slots=True)
class _Context:
    """As much of gRPC's context as the services use."""

    metadata: Metadata
    has_opened: asyncio.Event = field(default_factory=asyncio.Event)

    def invocation_metadata(self) -> Metadata:
        return self.metadata

    async def send_initial_metadata(self, metadata: Metadata) -> None:
        self.has_opened.set()

    async def abort(self, code: grpc.StatusCode, details: str, metadata: Metadata = ()) -> None:
        raise by_code(dict(metadata).get(CODE_KEY, ""))(details)


class _Stream:
    """A stream of orders. Runs from the start, as a call over a wire would."""

    def __init__(self, service: FakePrefill | FakeDecode, metadata: Metadata) -> None:
        self._batches: asyncio.Queue[pb.OrderBatch] = asyncio.Queue()
        self._context = _Context(metadata)
        self._deliveries = service.Orders(self._requests(), cast(Any, self._context))
        self._first = asyncio.ensure_future(anext(self._deliveries))

    async def initial_metadata(self) -> Metadata:
        await self._context.has_opened.wait()
        return ()

    async def write(self, batch: pb.OrderBatch) -> None:
        self._batches.put_nowait(batch)

    def cancel(self) -> bool:
        return self._first.cancel()

    async def __aiter__(self) -> AsyncIterator[pb.Delivery]:
        yield await self._first
        async for delivery in self._deliveries:
            yield delivery

    async def _requests(self) -> AsyncIterator[pb.OrderBatch]:
        while True:
            yield await self._batches.get()


class _Stub:
    """Calls a service by its methods' names."""

    def __init__(self, service: FakePrefill | FakeDecode) -> None:
        self._service = service

    def Orders(self, metadata: Metadata) -> _Stream:
        return _Stream(self._service, metadata)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._service, name)

        def call(message: Any, timeout: float = 0.0) -> Any:
            return method(message, _Context(()))

        return call


class _DirectPrefill(GrpcPrefillClient):
    def __init__(self, service: FakePrefill | FakeDecode, router_id: str) -> None:
        super().__init__(NOWHERE, router_id)
        self._worker_stub = self._stub = cast(Any, _Stub(service))


class _DirectDecode(GrpcDecodeClient):
    def __init__(self, service: FakePrefill | FakeDecode, router_id: str) -> None:
        super().__init__(NOWHERE, router_id)
        self._worker_stub = self._stub = cast(Any, _Stub(service))


class DirectPair:
    """One prefill and one decode worker in the router's process."""

    targets = (WorkerTarget("prefill", NOWHERE), WorkerTarget("decode", NOWHERE))

    def __init__(self, token_id: int) -> None:
        self._prefill, self._decode = (fake_worker(one.role, token_id) for one in self.targets)
        self.source = self._decode.source

    def fleet(
        self,
        connector: Connector | None = None,
        rules: RoutingRules | None = None,
        reservations: Reservations | None = None,
    ) -> Fleet:
        """A fleet of these workers, however it was to reach its workers."""
        del connector
        mine = Connector(
            lambda _, router_id: _DirectPrefill(self._prefill, router_id),
            lambda _, router_id: _DirectDecode(self._decode, router_id),
        )
        return Fleet(mine, rules, reservations)
