"""A client that costs little: requests made beforehand, raw sockets, and no parsing beyond what is counted.

Reads answers in HTTP's chunked coding, as servers stream them; counts the characters of the answers' texts, of which
every token has one here.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast
from urllib.parse import urlsplit

from benchmarks.door.workload import ChatRequest
from protocol.errors import DeadlineExceeded, KvferryError

CONTENT = re.compile(rb'"content":"([^"]*)"')
END_OF_ANSWER = b"\r\n0\r\n\r\n"
STATUS_OK = b"HTTP/1.1 200"
CONNECT_TIMEOUT_S = 10.0


@dataclass(slots=True)
class Burst:
    """What came of a closed loop: answers that ended within its time, and the client's processor time."""

    took_s: float
    num_answers: int
    client_cpu_s: float

    @property
    def answers_per_s(self) -> float:
        """Rate of answers."""
        return self.num_answers / self.took_s


class _Connection(asyncio.Protocol):
    """One connection that is kept open, one answer at a time. With `is_timed` the arrival of every character is kept."""

    def __init__(self, is_timed: bool) -> None:
        self.transport: asyncio.Transport | None = None
        self.arrived: list[float] = []
        self._is_timed = is_timed
        self._buffer = bytearray()
        self._answer: asyncio.Future[bytes] | None = None
        self._num_counted = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is there."""
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """A part of the answer."""
        buffer = self._buffer
        buffer += data
        if self._is_timed:
            self._count()
        is_refused = len(buffer) >= len(STATUS_OK) and not buffer.startswith(STATUS_OK)
        if buffer.endswith(END_OF_ANSWER) or is_refused:
            self._settle(bytes(buffer))
            buffer.clear()
            self._num_counted = 0

    def connection_lost(self, error: Exception | None) -> None:
        """The server has gone."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(KvferryError(f"the server closed the connection: {error}"))

    def ask(self, request: bytes) -> asyncio.Future[bytes]:
        """Sends a request; the whole answer, head included. Raises `KvferryError` when the status is not 200."""
        if self.transport is None:
            raise KvferryError("the connection is not open")
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return self._answer

    def _count(self) -> None:
        """Notes the time of the characters in what has come in whole since the last time."""
        now = time.monotonic()
        for match in CONTENT.finditer(self._buffer, self._num_counted):
            self.arrived.extend([now] * len(match[1]))
            self._num_counted = match.end()

    def _settle(self, answer: bytes) -> None:
        if self._answer is None or self._answer.done():
            return
        if answer.startswith(STATUS_OK):
            self._answer.set_result(answer)
        else:
            self._answer.set_exception(KvferryError(f"the server answered {answer[:400].decode(errors='replace')}"))


@dataclass(slots=True)
class Door:
    """A server under load."""

    url: str
    _opened: list[_Connection] = field(default_factory=list)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        parts = urlsplit(self.url)
        return parts.hostname or "", parts.port or 80

    async def connect(self, is_timed: bool = False) -> _Connection:
        """A new connection."""
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: _Connection(is_timed), *self.address
            )
        self._opened.append(connection)
        return connection

    def close(self) -> None:
        """Ends all connections."""
        for connection in self._opened:
            if connection.transport is not None:
                connection.transport.close()
        self._opened.clear()


def num_characters(answer: bytes) -> int:
    """Characters of text in an answer."""
    return sum(map(len, CONTENT.findall(answer)))


async def ask_once(url: str, request: ChatRequest, timeout_s: float) -> bytes:
    """One answer over a connection of its own."""
    door = Door(url)
    try:
        async with asyncio.timeout(timeout_s):
            return await (await door.connect()).ask(request.http(*door.address))
    except TimeoutError:
        raise DeadlineExceeded(f"{url} did not answer within {timeout_s:g} s") from None
    finally:
        door.close()


async def closed_loop(url: str, requests: Sequence[ChatRequest], duration_s: float, timeout_s: float) -> Burst:
    """Each of `requests` over and over on a connection of its own, for `duration_s`.

    Raises `KvferryError` when an answer is not whole and `DeadlineExceeded` when one takes longer than `timeout_s`.
    """
    door = Door(url)
    num_answers = 0
    end_at = 0.0

    async def ask_again(connection: _Connection, request: ChatRequest) -> None:
        nonlocal num_answers
        raw = request.http(*door.address)
        while time.monotonic() < end_at:
            answer = await connection.ask(raw)
            if (found := num_characters(answer)) != request.num_tokens:
                raise KvferryError(f"an answer of {request.num_tokens} tokens came with {found}")
            num_answers += time.monotonic() <= end_at

    try:
        connections = [await door.connect() for _ in requests]
        cpu_start, start = time.process_time(), time.monotonic()
        end_at = start + duration_s
        async with asyncio.timeout(duration_s + timeout_s), asyncio.TaskGroup() as group:
            for connection, request in zip(connections, requests, strict=True):
                group.create_task(ask_again(connection, request))
        return Burst(duration_s, num_answers, time.process_time() - cpu_start)
    except TimeoutError:
        raise DeadlineExceeded(f"{url} did not answer within {timeout_s:g} s") from None
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        door.close()


async def paced_streams(
    url: str, requests: Sequence[ChatRequest], spread_s: float, timeout_s: float
) -> dict[int, list[float]]:
    """All of `requests` at once, begun over `spread_s`; when each character came, by the request's number."""
    door = Door(url)
    arrived: dict[int, list[float]] = {}

    async def follow(index: int, request: ChatRequest) -> None:
        connection = await door.connect(is_timed=True)
        await asyncio.sleep(spread_s * index / len(requests))
        await connection.ask(request.http(*door.address))
        arrived[request.number] = connection.arrived

    try:
        async with asyncio.timeout(timeout_s), asyncio.TaskGroup() as group:
            for index, request in enumerate(requests):
                group.create_task(follow(index, request))
    except TimeoutError:
        raise DeadlineExceeded(f"{url} did not end its answers within {timeout_s:g} s") from None
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    finally:
        door.close()
    return arrived
