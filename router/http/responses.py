"""The answer to a planned request on its way to an HTTP client, as SSE or in one piece."""

from __future__ import annotations

import asyncio
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router.front.answering import Answering, Call
from router.front.front import Front
from router.front.planning import Plan
from router.http.formats import AnswerFormat
from router.http.writers import Exchange, SseWriter, WholeWriter


class AnswerResponse(Response):
    """Carries out `plan` and answers in `form`. Admission happens when the response is sent."""

    def __init__(self, front: Front, plan: Plan, form: AnswerFormat, call: Call) -> None:
        super().__init__()
        self._retry_after_s = front.config.retry_after_s
        self._plan = plan
        self._form = form
        self._answering = Answering(front, plan, call)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application of this one response: when the client goes away, the request is cancelled."""
        exchange = Exchange(scope, receive, send, self._retry_after_s)
        writer = (SseWriter if self._plan.is_stream else WholeWriter)(exchange, self._plan, self._form)
        work = asyncio.ensure_future(self._answering.run(writer))
        gone = asyncio.ensure_future(_until_disconnect(receive))
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                work.result()
        finally:
            await _cancel(work, gone)


async def _until_disconnect(receive: Receive) -> None:
    """Returns when the client has gone, or the response is complete."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    """Ends tasks that still run and waits until they have cleaned up."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
