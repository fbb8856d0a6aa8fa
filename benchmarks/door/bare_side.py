"""What the router is compared with: a bare FastAPI endpoint, on the same server, that reads its body and streams the same
events.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from starlette.responses import StreamingResponse

from benchmarks.door.router_side import router_config
from benchmarks.door.workload import CHAT_PATH
from router.server import HttpServer


class BareSide:
    """The servant of that process. `chunks` are the writes of one answer, the last of which is the end mark.

    With a step, the answer has as many chunks as the request has tokens, one a step, and the server remembers when each
    step began, by the request's seed.
    """

    def __init__(self, chunks: tuple[bytes, ...]) -> None:
        self._chunks = chunks
        self._step_s = 0.0
        self._beat: asyncio.Event | None = None
        self._beat_at = 0.0
        self._num_listeners = 0
        self._stepper: asyncio.Task[None] | None = None
        self._sent: dict[int, list[float]] = defaultdict(list)
        self._server = HttpServer(self._app(), router_config())

    def start(self) -> str:
        """Serves; the URL."""
        self._server.start_in_thread()
        return self._server.url

    def set_step(self, step_s: float) -> None:
        """From the next answer on: a chunk every `step_s` seconds; 0 for all at once."""
        self._step_s = step_s

    def take_sent(self) -> dict[int, list[float]]:
        """When the steps of each paced answer began."""
        sent, self._sent = self._sent, defaultdict(list)
        return dict(sent)

    def stop(self) -> None:
        """Ends the server."""
        self._server.stop()
        self._server.join()

    def _app(self) -> FastAPI:
        app = FastAPI(openapi_url=None)

        @app.post(CHAT_PATH)
        async def answer(body: dict[str, Any]) -> StreamingResponse:
            is_paced = self._step_s > 0
            events = self._paced(int(body["seed"]), int(body["max_tokens"])) if is_paced else self._at_once()
            return StreamingResponse(events, media_type="text/event-stream")

        return app

    async def _at_once(self) -> AsyncIterator[bytes]:
        for chunk in self._chunks:
            yield chunk

    async def _paced(self, number: int, num_tokens: int) -> AsyncIterator[bytes]:
        self._num_listeners += 1
        try:
            for _ in range(num_tokens):
                await self._next_beat().wait()
                self._sent[number].append(self._beat_at)
                yield self._chunks[1]
            yield self._chunks[-1]
        finally:
            self._num_listeners -= 1

    def _next_beat(self) -> asyncio.Event:
        """The event of the next step. Steps are made while somebody waits for them."""
        if self._beat is None:
            self._beat = asyncio.Event()
        if self._stepper is None or self._stepper.done():
            self._stepper = asyncio.create_task(self._keep_stepping())
        return self._beat

    async def _keep_stepping(self) -> None:
        due = time.monotonic()
        while self._num_listeners and self._step_s > 0:
            due = max(due + self._step_s, time.monotonic())
            await asyncio.sleep(due - time.monotonic())
            beat, self._beat = self._beat, asyncio.Event()
            self._beat_at = time.monotonic()
            if beat is not None:
                beat.set()
