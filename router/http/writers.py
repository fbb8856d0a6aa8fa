"""The two ways an answer reaches the client: in events, or whole. An error before the first byte is a response."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from protocol.errors import KvferryError
from router.front.answer import Piece
from router.front.planning import Plan
from router.front.writer import Usage
from router.generation import GenerationStart
from router.http.errors import JSON_MEDIA_TYPE, error_json, error_response
from router.http.formats import DONE, END_OF_EVENT, EVENT, Answer, AnswerFormat

MAX_INLINE_ENTRIES = 512
"""Most log-probabilities that are written out on the event loop's own thread; more go to another thread."""

SSE_HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """The ASGI side of one request."""

    scope: Scope
    receive: Receive
    send: Send
    retry_after_s: int

    async def respond(self, response: Response) -> None:
        """Sends a whole response."""
        await response(self.scope, self.receive, self.send)


class SseWriter:
    """One event a piece; those that are ready together are sent in one message. The response begins with the first."""

    def __init__(self, exchange: Exchange, plan: Plan, form: AnswerFormat) -> None:
        self._exchange = exchange
        self._form = form
        self._plan = plan
        self._starts: dict[int, GenerationStart] = {}
        self._unopened = set(range(plan.num_choices))
        self._unsent: list[str] = []
        self._starting = asyncio.Lock()
        self._is_started = False

    async def begin(self, prompt: int, start: GenerationStart) -> None:
        """Keeps the start for the choices' opening events, which go with their first pieces."""
        self._starts[prompt] = start

    async def deliver(self, index: int, piece: Piece) -> None:
        """Takes the piece as an event."""
        if index in self._unopened:
            self._unopened.discard(index)
            self._unsent.append(await self._opening(index))
        self._unsent.append(self._form.chunk(index, piece))

    async def flush(self) -> None:
        """Sends the events that were taken."""
        if self._unsent:
            await self._write(more_body=True)

    async def end(self, usage: Usage) -> None:
        """Sends what is left, the usage when it was asked for, and the end of the stream."""
        if self._plan.has_usage_chunk:
            self._unsent.append(self._form.usage_chunk(usage))
        self._unsent.append(DONE)
        await self._write(more_body=False)

    async def fail(self, error: KvferryError) -> None:
        """Sends the error as a response, or as the last event of a stream that has begun."""
        if not self._is_started and not self._unsent:
            await self._exchange.respond(error_response(error, self._exchange.retry_after_s))
            return
        self._unsent.append(EVENT + error_json(error) + END_OF_EVENT)
        await self._write(more_body=False)

    async def _write(self, *, more_body: bool) -> None:
        body, self._unsent = "".join(self._unsent).encode(), []
        if not self._is_started:
            await self._start()
        await self._exchange.send({"type": "http.response.body", "body": body, "more_body": more_body})

    async def _opening(self, index: int) -> str:
        prompt = self._plan.prompt_of(index)
        if self._plan.num_prompt_entries(prompt) <= MAX_INLINE_ENTRIES:
            return self._form.opening(index, self._starts[prompt])
        return await asyncio.to_thread(self._form.opening, index, self._starts[prompt])

    async def _start(self) -> None:
        async with self._starting:
            if not self._is_started:
                start = {"type": "http.response.start", "status": 200, "headers": list(SSE_HEADERS)}
                await self._exchange.send(start)
                self._is_started = True


class WholeWriter:
    """Keeps the pieces and answers once."""

    def __init__(self, exchange: Exchange, plan: Plan, form: AnswerFormat) -> None:
        self._exchange = exchange
        self._form = form
        self._plan = plan
        self._starts: dict[int, GenerationStart] = {}
        self._pieces: list[list[Piece]] = [[] for _ in range(plan.num_choices)]
        self._entries_per_piece = 0 if plan.num_logprobs is None else plan.num_logprobs + 1

    async def begin(self, prompt: int, start: GenerationStart) -> None:
        """Keeps the start."""
        self._starts[prompt] = start

    async def deliver(self, index: int, piece: Piece) -> None:
        """Keeps the piece."""
        self._pieces[index].append(piece)

    async def flush(self) -> None:
        """Does nothing: all is sent at the end."""

    async def end(self, usage: Usage) -> None:
        """Sends the response."""
        num_entries = self._entries_per_piece * sum(map(len, self._pieces))
        num_entries += sum(self._plan.num_prompt_entries(self._plan.prompt_of(at)) for at in range(len(self._pieces)))
        if num_entries <= MAX_INLINE_ENTRIES:
            content = self._content(usage)
        else:
            content = await asyncio.to_thread(self._content, usage)
        await self._exchange.respond(Response(content, media_type=JSON_MEDIA_TYPE))

    async def fail(self, error: KvferryError) -> None:
        """Sends the error."""
        await self._exchange.respond(error_response(error, self._exchange.retry_after_s))

    def _content(self, usage: Usage) -> bytes:
        answers = [
            Answer(self._starts[self._plan.prompt_of(index)], pieces) for index, pieces in enumerate(self._pieces)
        ]
        return json.dumps(self._form.whole(answers, usage)).encode()
