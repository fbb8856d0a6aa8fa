"""What the router asks of a worker. One implementation speaks gRPC; tests put workers of the same process behind it."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from protocol import kvferry_worker_pb2 as pb
from protocol.description import WorkerDescription
from protocol.errors import KvferryError
from protocol.ids import WorkerId
from protocol.pace import Pace, TransferPlan, TransferProgress
from protocol.prefix_events import EventBatch, PrefixSnapshot
from protocol.request import GeneratedToken, GenerateRequest, PromptLogprobs
from protocol.ticket import Ticket
from router.generation import KvLanded


@dataclass(frozen=True, slots=True)
class PrefillOutcome:
    """What a prefill worker answers: the first token of each choice, the prompt tokens that came from its prefix cache, and
    the prompt's log-probabilities when they were asked for.
    """

    first_tokens: tuple[GeneratedToken, ...]
    num_cached_tokens: int
    prompt_logprobs: PromptLogprobs | None = None


@dataclass(frozen=True, slots=True)
class PromptRead:
    """A decode worker has read a prompt itself, of which `num_cached_tokens` came from its prefix cache; `scores` are its
    log-probabilities, empty when they were not asked for. It comes before the first token.
    """

    num_cached_tokens: int
    scores: PromptLogprobs


@dataclass(frozen=True, slots=True)
class KvLost:
    """KV of the prompt did not arrive, and why; the decode worker computes it and goes on."""

    error: KvferryError


PrefixNews = PrefixSnapshot | EventBatch | None
"""What a worker tells of its prefix cache; None: no more comes, or some of it was not understood."""
InboxItem = GeneratedToken | PromptRead | KvLanded | KvLost
MAX_TOGETHER = 64
"""Tokens that are handed on at once, so that a burst for one request does not hold up the others."""


class TokenInbox:
    """What comes for one request from one decode worker, until `deadline` (monotonic seconds); bounded by the request's own
    `max_tokens`. Has one reader.
    """

    def __init__(self, deadline: float = math.inf) -> None:
        self.deadline = deadline
        self._items: deque[InboxItem | KvferryError] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._is_woken = False

    def put(self, item: InboxItem | KvferryError) -> None:
        """Adds a token, that the prompt was read, that its KV has landed or was lost, or the error that ends the request."""
        self._items.append(item)
        self.wake()

    def take(self) -> list[InboxItem]:
        """What is here already, at most `MAX_TOGETHER` items. Raises the error that the worker ended the request with, once
        all that came before it has been taken.
        """
        items = self._items
        first = items[0] if items else None
        if isinstance(first, KvferryError):
            items.popleft()
            raise first
        taken: list[InboxItem] = []
        while items and len(taken) < MAX_TOGETHER:
            item = items[0]
            if isinstance(item, KvferryError):
                break
            taken.append(item)
            items.popleft()
        return taken

    def put_back(self, items: Sequence[InboxItem]) -> None:
        """What was taken too early comes first again."""
        self._items.extendleft(reversed(items))

    def wake(self) -> None:
        """Makes the reader look again, though nothing came."""
        self._is_woken = True
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def arrival(self) -> None:
        """Returns when there is something to take, or the reader was woken."""
        # A plain future: an `asyncio.Event` would cost three times as much, once a token.
        if not self._items and not self._is_woken:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        self._is_woken = False


class WorkerClient(Protocol):
    """What both kinds of worker answer. Every call has a deadline and raises from the error tree: `WorkerUnavailable` when
    the worker is gone or was given up, `DeadlineExceeded` after the `deadline_s` that a call may have.
    """

    target: str

    async def describe(self) -> WorkerDescription:
        """Who answers at this target."""
        ...

    async def status(self) -> pb.WorkerStatus:
        """Queue, blocks, slots and transfers."""
        ...

    async def cancel(self, request_id: str, choice: int | None = None) -> None:
        """Ends a request, or one of its choices; unknown ones are ignored."""
        ...

    async def forget(self, worker: WorkerId) -> None:
        """Ends all transfers with a worker that is gone."""
        ...

    async def drain(self, timeout_s: float, restart: bool) -> None:
        """Makes it take nothing new, and end what it has within `timeout_s`; returns at once. With `restart` whoever supervises
        its process starts a new one in its place.
        """
        ...

    async def follow_prefixes(self, on_news: Callable[[PrefixNews], None]) -> None:
        """Has `on_news` called with all that is in the worker's prefix cache, and from then on with its events, in place of
        whom it was called with before. After None it has to be called again.
        """
        ...

    async def is_gone(self) -> bool:
        """Whether the worker's process has certainly ended. A silent one may only be stopped, and write again later."""
        ...

    def give_up(self) -> None:
        """Fails whatever waits for the worker, tokens too, as `WorkerUnavailable`: one that was merely stopped would keep it
        waiting for ever.
        """
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
        self, request: GenerateRequest, ticket: Ticket | None, deadline_s: float, plan: TransferPlan | None = None
    ) -> PrefillOutcome:
        """Has the prompt read, and its KV shipped when there is a ticket; with a plan, at its pace."""
        ...

    def set_pace(self, request_id: str, pace: Pace) -> None:
        """Gives a planned transfer another pace. Does not wait; a worker that is not connected has no transfer of ours."""
        ...

    def watch(self, request_id: str, on_progress: Callable[[TransferProgress], None]) -> None:
        """Has `on_progress` called with what the worker reports of a planned transfer, until `unwatch`."""
        ...

    def unwatch(self, request_id: str) -> None:
        """Reports that still come are dropped."""
        ...


class DecodeClient(WorkerClient, Protocol):
    """A decode worker. Tokens of a request come to the inbox opened for it."""

    def open(self, request_id: str, deadline_s: float) -> TokenInbox:
        """Opens the inbox, before `decode` or `generate` is called. After `deadline_s` it holds `DeadlineExceeded`."""
        ...

    def close_inbox(self, request_id: str) -> None:
        """Forgets it; tokens that still come are dropped."""
        ...

    async def reserve(self, request: GenerateRequest, prefill_worker: WorkerId, deadline_s: float) -> Ticket:
        """Blocks and landing slots for the prompt's KV, once there are any."""
        ...

    async def decode(self, ticket: Ticket, first_tokens: Sequence[GeneratedToken]) -> None:
        """Starts decoding after the first tokens of the choices that go on, at least one. A refusal is raised, or comes to
        the inbox.
        """
        ...

    async def generate(self, request: GenerateRequest, deadline_s: float) -> None:
        """Has the prompt read and the answer generated there."""
        ...
