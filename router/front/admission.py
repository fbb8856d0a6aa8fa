"""How many generations run and how many wait: first come, first served, refused at once when the queue is full.

Knows nothing of HTTP or of what a generation is. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from protocol.errors import BadRequest, NotReady, Overloaded


@dataclass(frozen=True, slots=True)
class AdmissionLoad:
    """Places taken and requests that wait for one."""

    running: int
    waiting: int


class Place:
    """A place in the queue, then among the running. Its owner calls `leave` exactly when it no longer needs it."""

    def __init__(self, admission: Admission, turn: asyncio.Future[None]) -> None:
        self._admission = admission
        self._turn = turn
        self._has_left = False

    async def turn(self) -> None:
        """Returns when the place is among the running."""
        await asyncio.shield(self._turn)

    @property
    def is_running(self) -> bool:
        """Whether its turn has come."""
        return self._turn.done() and not self._turn.cancelled()

    def leave(self) -> None:
        """Gives the place up, waiting or running. Idempotent."""
        if not self._has_left:
            self._has_left = True
            self._admission._leave(self._turn)


class Admission:
    """At most `max_concurrent` places run and `max_queue` wait.

    Invariant: a place waits only while all `max_concurrent` run.
    """

    def __init__(self, max_concurrent: int, max_queue: int) -> None:
        self._max_concurrent = max_concurrent
        self._max_queue = max_queue
        self.is_closed = False
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def load(self) -> AdmissionLoad:
        """The present load."""
        return AdmissionLoad(self._running, len(self._waiting))

    def enter(self, num_places: int = 1) -> list[Place]:
        """All places or none. Raises `Overloaded` when they do not fit now, `BadRequest` when they never could, `NotReady` once
        this is closed.
        """
        if self.is_closed:
            raise NotReady("this server is about to stop and takes no new requests: try again later")
        capacity = self._max_concurrent + self._max_queue
        if num_places > capacity:
            raise BadRequest(
                f"{num_places} answers in one request, prompts times n; this server runs and queues {capacity} at most",
                param="prompt",
            )
        taken = self._running + len(self._waiting)
        if taken + num_places > capacity:
            raise Overloaded(f"{self._running} requests run and {len(self._waiting)} wait already: try again later")
        loop = asyncio.get_running_loop()
        turns = [loop.create_future() for _ in range(num_places)]
        self._waiting.extend(turns)
        self._call_next()
        return [Place(self, turn) for turn in turns]

    def close(self) -> None:
        """Gives no place from now on. Those that are taken stay, waiting or running."""
        self.is_closed = True

    def _leave(self, turn: asyncio.Future[None]) -> None:
        if turn.done():
            self._running -= 1
        else:
            self._waiting.remove(turn)
            turn.cancel()
        self._call_next()

    def _call_next(self) -> None:
        while self._waiting and self._running < self._max_concurrent:
            self._running += 1
            self._waiting.popleft().set_result(None)
