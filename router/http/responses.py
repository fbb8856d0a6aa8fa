"""The answer to a planned request on its way to the client, as SSE or in one piece.

Owns the request's places and tasks: when the client goes away, the deadline passes or a choice fails, all generations
of the request are cancelled before the response ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from protocol.errors import Cancelled, DeadlineExceeded
from router.front.admission import Place
from router.front.choice import ChoiceTally, run_choice
from router.http.errors import as_kvferry_error
from router.http.formats import AnswerFormat, Usage
from router.front.front import Front
from router.front.planning import Plan
from router.http.writers import Exchange, SseWriter, WholeWriter, Writer

LOG = logging.getLogger(__name__)
LAST_WORD_S = 5.0
"""How long a client may take to accept the error that ends its response."""


class AnswerResponse(Response):
    """Carries out `plan` and answers in `form`. Admission happens when the response is sent."""

    def __init__(self, front: Front, plan: Plan, form: AnswerFormat, arrived_at: float) -> None:
        super().__init__()
        self._front = front
        self._plan = plan
        self._form = form
        self._deadline_in_s = front.config.request_timeout_s - (time.monotonic() - arrived_at)
        self._tallies = [ChoiceTally(index, request, arrived_at) for index, request in enumerate(plan.requests)]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application of this one response."""
        exchange = Exchange(scope, receive, send, self._front.config.retry_after_s)
        writer = self._writer(exchange)
        work = asyncio.ensure_future(self._carry_out(writer, scope["state"]["request_id"]))
        gone = asyncio.ensure_future(_until_disconnect(receive))
        outcome = Cancelled.code
        try:
            await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
            if work.done():
                outcome = work.result()
        finally:
            await _cancel(work, gone)
            self._report(outcome, scope["state"]["request_id"])

    def _writer(self, exchange: Exchange) -> Writer:
        kind = SseWriter if self._plan.is_stream else WholeWriter
        return kind(exchange, self._plan, self._form)

    async def _carry_out(self, writer: Writer, request_id: str) -> str:
        """Runs and writes everything; returns the outcome of the choices that did not end by themselves."""
        places: list[Place] = []
        deadline = asyncio.timeout(self._deadline_in_s)
        try:
            async with deadline:
                places = self._front.admission.enter(len(self._tallies))
                await self._run_choices(places, writer)
                await writer.end(self._usage())
            return "ended"
        except Exception as failure:  # noqa: BLE001 - the client is told, and what was not raised on purpose is logged
            late = DeadlineExceeded(
                f"not done within the {self._front.config.request_timeout_s:g} s that are allowed here"
            )
            error = as_kvferry_error(late if deadline.expired() else failure, request_id)
        finally:
            for place in places:
                place.leave()
        try:
            async with asyncio.timeout(LAST_WORD_S):
                await writer.fail(error)
        except TimeoutError:
            # The response stays incomplete, so the server closes the connection: there is nobody left to tell.
            LOG.warning("request %s: the client does not read, its error %s was not delivered", request_id, error.code)
        return error.code

    async def _run_choices(self, places: list[Place], writer: Writer) -> None:
        if len(places) == 1:
            await run_choice(self._front, self._plan, self._tallies[0], places[0], writer.deliver)
            return
        async with asyncio.TaskGroup() as group:
            for tally, place in zip(self._tallies, places, strict=True):
                group.create_task(run_choice(self._front, self._plan, tally, place, writer.deliver))

    def _report(self, outcome: str, request_id: str) -> None:
        for tally in self._tallies:
            tally.report(self._front.metrics, self._form.endpoint, outcome)
            LOG.info(
                "request %s, generation %s: %d prompt tokens, %d cached, %d generated, %s",
                request_id,
                tally.request.request_id,
                tally.request.num_prompt_tokens,
                tally.cached_tokens,
                tally.generated_tokens,
                tally.outcome or outcome,
            )

    def _usage(self) -> Usage:
        return Usage(
            prompt_tokens=sum(tally.request.num_prompt_tokens for tally in self._tallies),
            completion_tokens=sum(tally.generated_tokens for tally in self._tallies),
            cached_tokens=sum(tally.cached_tokens for tally in self._tallies),
        )


async def _until_disconnect(receive: Receive) -> None:
    """Returns when the client has gone, or the response is complete."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def _cancel(*tasks: asyncio.Future[Any]) -> None:
    """Ends tasks that still run and waits until they have cleaned up."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
