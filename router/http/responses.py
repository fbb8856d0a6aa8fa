"""The answer to a planned request on its way to an HTTP client, as SSE or in one piece."""

from __future__ import annotations

import asyncio

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from protocol.errors import KvferryError
from router.front.answering import Answering, Call
from router.front.front import Front
from router.front.planning import Plan
from router.http.formats import AnswerFormat
from router.http.request_ids import IS_LOGGED
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
        scope["state"][IS_LOGGED] = True
        exchange = Exchange(scope, receive, send, self._retry_after_s)
        writer = (SseWriter if self._plan.is_stream else WholeWriter)(exchange, self._plan, self._form)
        async with _UntilDisconnect(receive):
            await self._answering.run(writer)


class _UntilDisconnect:
    """Cancels what runs within when the client goes away, and then ends without an error.

    The work needs no task of its own, only the wait for the client does.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._has_gone = False
        self._is_over = False

    async def __aenter__(self) -> None:
        work = asyncio.current_task()
        if work is None:
            raise KvferryError("an answer is given by a task of the event loop")
        self._work = work
        self._watch = asyncio.create_task(self._watch_client())

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        self._is_over = True
        self._watch.cancel()
        if not self._has_gone:
            return False
        is_cancelled_by_others = self._work.uncancel() > 0
        return kind is asyncio.CancelledError and not is_cancelled_by_others

    async def _watch_client(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        if not self._is_over:
            self._has_gone = True
            self._work.cancel()
