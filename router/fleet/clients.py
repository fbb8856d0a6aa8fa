"""What the router asks of a worker. One implementation speaks gRPC; tests put workers of the same process behind it."""

from __future__ import annotations

import asyncio
from typing import Protocol

from protocol import kvferry_worker_pb2 as pb
from protocol.description import WorkerDescription
from protocol.errors import KvferryError
from protocol.ids import WorkerId
from protocol.request import GeneratedToken, GenerateRequest
from protocol.ticket import Ticket


class TokenInbox:
    """The tokens of one request on one decode worker, as they come; bounded by the request's own `max_tokens`."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[GeneratedToken | KvferryError] = asyncio.Queue()

    def put(self, item: GeneratedToken | KvferryError) -> None:
        """Adds a token, or the error that ends the request."""
        self._queue.put_nowait(item)

    async def next(self) -> GeneratedToken:
        """The next token. Raises the error that the worker ended the request with."""
        item = await self._queue.get()
        if isinstance(item, KvferryError):
            raise item
        return item


class WorkerClient(Protocol):
    """What both kinds of worker answer. Every call has a deadline and raises from the error tree."""

    target: str

    async def describe(self) -> WorkerDescription:
        """Who answers at this target."""
        ...

    async def status(self) -> pb.WorkerStatus:
        """Queue, blocks, slots and transfers."""
        ...

    async def cancel(self, request_id: str) -> None:
        """Ends a request; unknown ones are ignored."""
        ...

    async def forget(self, worker: WorkerId) -> None:
        """Ends all transfers with a worker that is gone."""
        ...

    async def is_gone(self) -> bool:
        """Whether the worker's process has certainly ended. A silent one may only be stopped, and write again later."""
        ...

    async def close(self) -> None:
        """Ends the connection."""
        ...


class PrefillClient(WorkerClient, Protocol):
    """A prefill worker."""

    async def connect(self, decode_target: str) -> pb.ConnectReply:
        """Makes it shake hands with a decode worker and test the link."""
        ...

    async def prefill(
        self, request: GenerateRequest, ticket: Ticket | None, deadline_s: float
    ) -> tuple[GeneratedToken, int]:
        """The first token, and the prompt tokens that came from its prefix cache."""
        ...


class DecodeClient(WorkerClient, Protocol):
    """A decode worker. Tokens of a request come to the inbox opened for it."""

    def open(self, request_id: str) -> TokenInbox:
        """Opens the inbox, before `decode` or `generate` is called."""
        ...

    def close_inbox(self, request_id: str) -> None:
        """Forgets it; tokens that still come are dropped."""
        ...

    async def reserve(self, request: GenerateRequest, prefill_worker: WorkerId, deadline_s: float) -> Ticket:
        """Blocks and landing slots for the prompt's KV, once there are any."""
        ...

    async def decode(self, ticket: Ticket, first_token: GeneratedToken) -> None:
        """Starts decoding after `first_token`."""
        ...

    async def generate(self, request: GenerateRequest, deadline_s: float) -> None:
        """Has the prompt read and the answer generated there."""
        ...
