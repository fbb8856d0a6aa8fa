"""One worker in the fleet: its client, what it said of itself, how busy this router keeps it, whether it answers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from protocol import kvferry_worker_pb2 as pb
from protocol.description import WorkerDescription
from protocol.errors import DeadlineExceeded, WorkerUnavailable
from router.fleet.clients import TokenInbox, WorkerClient

Client = TypeVar("Client", bound=WorkerClient)
Answer = TypeVar("Answer")

ASSUMED_PREFILL_TOKENS_PER_SECOND = 1000.0
"""Until the first prompt has been timed."""
RATE_SMOOTHING = 0.3
MAX_MISSED_PINGS = 3
"""Status calls that may fail in a row before a worker is taken for gone."""


@dataclass(slots=True)
class Member(Generic[Client]):
    """`num_queued_tokens` and `num_active` count what this router has given it and not got back.

    `refused_for_good` names the decode workers that a prefill worker can never ship to, `forgotten_by` the peers that have
    ended their transfers with an incarnation that is gone, `uncancelled` the requests that it is to be told to end as soon
    as it answers again.
    """

    client: Client
    description: WorkerDescription
    status: pb.WorkerStatus = field(default_factory=pb.WorkerStatus)
    num_missed_pings: int = 0
    num_active: int = 0
    num_queued_tokens: int = 0
    num_held_tokens: int = 0
    tokens_per_second: float = ASSUMED_PREFILL_TOKENS_PER_SECOND
    links: dict[str, pb.ConnectReply] = field(default_factory=dict)
    link_refusals: dict[str, str] = field(default_factory=dict)
    refused_for_good: set[str] = field(default_factory=set)
    forgotten_by: set[str] = field(default_factory=set)
    uncancelled: set[str] = field(default_factory=set)
    _waits: set[asyncio.Timeout] = field(default_factory=set)
    _readers: set[TokenInbox] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The worker's name, the same over all its incarnations."""
        return self.description.worker.name

    @property
    def is_healthy(self) -> bool:
        """Whether it answers."""
        return self.num_missed_pings < MAX_MISSED_PINGS

    async def answer(self, timeout_s: float, waiting: Awaitable[Answer]) -> Answer:
        """What `waiting`, a call to this worker, gives.

        Raises `WorkerUnavailable` as soon as the worker is taken for gone: one that was merely stopped would keep the call
        open for ever. Raises `DeadlineExceeded` after `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s) as limit:
                self._waits.add(limit)
                try:
                    return await waiting
                finally:
                    self._waits.discard(limit)
        except TimeoutError:
            if not self.is_healthy:
                raise WorkerUnavailable(f"{self.name} does not answer") from None
            raise DeadlineExceeded(f"{self.name} did not answer before the request's deadline") from None

    @contextmanager
    def read_by(self, inbox: TokenInbox, deadline: float) -> Iterator[None]:
        """While it lasts, `inbox` is told when the worker is taken for gone, and when `deadline` (monotonic) has come.

        One timer for all of a request's tokens: one for each would cost more than the tokens do.
        """
        late = DeadlineExceeded(f"{self.name} did not answer before the request's deadline")
        timer = asyncio.get_running_loop().call_later(max(0.0, deadline - time.monotonic()), inbox.put, late)
        self._readers.add(inbox)
        try:
            yield
        finally:
            self._readers.discard(inbox)
            timer.cancel()

    def miss_ping(self) -> None:
        """A status call has failed. Once the worker is taken for gone, whoever waits for it learns so."""
        self.num_missed_pings += 1
        if not self.is_healthy:
            for inbox in self._readers:
                inbox.put(WorkerUnavailable(f"{self.name} does not answer"))
            for limit in [one for one in self._waits if not one.expired()]:
                limit.reschedule(asyncio.get_running_loop().time())

    def time_prefill(self, num_tokens: int, seconds: float) -> None:
        """Learns from a prompt of `num_tokens` whose first token took `seconds`, queue included."""
        if seconds > 0:
            self.tokens_per_second += RATE_SMOOTHING * (num_tokens / seconds - self.tokens_per_second)
