"""How many generations run and how many wait: first come, first served, refused at once when the queue is full, or when the
first token would come too late.

Knows nothing of HTTP or of what a generation is. Belongs to one event loop.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from protocol.errors import BadRequest, NotReady, Overloaded
from router.front.forecast import FirstTokenForecast, Wait


@dataclass(frozen=True, slots=True)
class AdmissionLoad:
    """Places taken and requests that wait for one."""

    running: int
    waiting: int


class Place:
    """A place in the queue, then among the running. Its owner calls `leave` exactly when it no longer needs it."""

    def __init__(self, admission: Admission, turn: asyncio.Future[None], wait: Wait) -> None:
        self._admission = admission
        self._turn = turn
        self._wait = wait
        self._has_left = False

    async def turn(self) -> None:
        """Returns when the place is among the running."""
        await asyncio.shield(self._turn)

    @property
    def is_running(self) -> bool:
        """Whether its turn has come."""
        return self._turn.done() and not self._turn.cancelled()

    def got_first_token(self) -> None:
        """Its prompt was read: it no longer waits for a first token. Idempotent."""
        self._admission._answered(self._wait)

    def leave(self) -> None:
        """Gives the place up, waiting or running. Idempotent."""
        if not self._has_left:
            self._has_left = True
            self._admission._leave(self._turn, self._wait)


class Admission:
    """At most `max_concurrent` places run and `max_queue` wait. `clock` gives seconds.

    Invariant: a place waits only while all `max_concurrent` run.
    """

    def __init__(self, max_concurrent: int, max_queue: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._max_concurrent = max_concurrent
        self._max_queue = max_queue
        self._clock = clock
        self._forecast = FirstTokenForecast()
        self.is_closed = False
        self._running = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def load(self) -> AdmissionLoad:
        """The present load."""
        return AdmissionLoad(self._running, len(self._waiting))

    def check(self, patience_s: float) -> None:
        """Raises `Overloaded` when not even one place would be had now, or none whose first token can be expected within
        `patience_s`, and `NotReady` once this is closed.
        """
        self._check_open()
        self._check_room(1)
        self._check_wait(patience_s)

    def enter(self, num_places: int = 1, patience_s: float = math.inf) -> list[Place]:
        """All places or none. Raises `Overloaded` when they do not fit now, or the first token is not to be expected within
        `patience_s`, `BadRequest` when they never could fit, and `NotReady` once this is closed.
        """
        self._check_open()
        capacity = self._max_concurrent + self._max_queue
        if num_places > capacity:
            raise BadRequest(
                f"{num_places} answers in one request, prompts times n; this server runs and queues {capacity} at most",
                param="prompt",
            )
        self._check_room(num_places)
        self._check_wait(patience_s)
        loop, now = asyncio.get_running_loop(), self._clock()
        turns = [loop.create_future() for _ in range(num_places)]
        self._waiting.extend(turns)
        self._call_next()
        return [Place(self, turn, self._forecast.join(now)) for turn in turns]

    def close(self) -> None:
        """Gives no place from now on. Those that are taken stay, waiting or running."""
        self.is_closed = True

    def _check_open(self) -> None:
        if self.is_closed:
            raise NotReady("this server is about to stop and takes no new requests: try again later")

    def _check_room(self, num_places: int) -> None:
        if self._running + len(self._waiting) + num_places > self._max_concurrent + self._max_queue:
            raise Overloaded(f"{self._running} requests run and {len(self._waiting)} wait already: try again later")

    def _check_wait(self, patience_s: float) -> None:
        """A request without any time left is not refused here: it has missed its deadline, which is another error."""
        expected_s = self._forecast.expected_s()
        if expected_s > patience_s > 0.0:
            raise Overloaded(
                f"{self._forecast.num_waiting} others have no first token yet, and this one would have it in about "
                f"{expected_s:.1f} s, later than in {patience_s:.1f} s as it has to be: try again later"
            )

    def _answered(self, wait: Wait) -> None:
        self._forecast.answered(wait, self._clock())

    def _leave(self, turn: asyncio.Future[None], wait: Wait) -> None:
        self._forecast.left(wait)
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
