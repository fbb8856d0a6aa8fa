"""Carries out a plan: admission, all its generations, the deadline, and the books.

Owns the request's places and tasks: when the deadline passes, a choice fails or the caller is cancelled (its client went
away), all generations of the request are cancelled before this ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass, field

from protocol.errors import Cancelled, DeadlineExceeded, KvferryError, Overloaded
from router.fleet.failures import FailureCause
from router.front.admission import Place
from router.front.choice import ChoiceTally, run_request
from router.front.errors import as_kvferry_error
from router.front.front import Front
from router.front.planning import Plan
from router.front.writer import Usage, Writer

LOG = logging.getLogger(__name__)
LAST_WORD_S = 5.0
"""How long a client may take to accept the error that ends its response."""


@dataclass(frozen=True, slots=True)
class Call:
    """What a door knows of a request besides its body. `timeout_s` counts from `arrived_at` (monotonic seconds)."""

    request_id: str
    endpoint: str
    timeout_s: float
    arrived_at: float = field(default_factory=time.monotonic)


class Answering:
    """One plan on its way to one client. Runs once."""

    def __init__(self, front: Front, plan: Plan, call: Call) -> None:
        self._front = front
        self._plan = plan
        self._call = call
        self._tallies = [
            [
                ChoiceTally(number * request.num_choices + choice, request, call.arrived_at)
                for choice in range(request.num_choices)
            ]
            for number, request in enumerate(plan.requests)
        ]

    async def run(self, writer: Writer) -> None:
        """Answers through `writer`, errors included. Cancelling this cancels the request."""
        outcome = Cancelled.code
        try:
            outcome = await self._carry_out(writer)
        except asyncio.CancelledError:
            self._count(FailureCause.CLIENT_GONE, "the client went away before its answer had ended")
            raise
        finally:
            self._report(outcome)

    async def _carry_out(self, writer: Writer) -> str:
        """Runs and writes everything; returns the outcome of the choices that did not end by themselves."""
        places: list[Place] = []
        remaining_s = self._call.timeout_s - (time.monotonic() - self._call.arrived_at)
        deadline = asyncio.timeout(remaining_s)
        try:
            async with deadline:
                places = self._front.admission.enter(
                    sum(map(len, self._tallies)), self._front.config.patience_s(remaining_s)
                )
                if self._front.config.log_prompts:
                    await self._log_prompts()
                await self._run_requests(places, writer)
                await writer.end(self._usage())
            return "ended"
        except Exception as failure:  # noqa: BLE001 - the client is told, and what was not raised on purpose is logged
            late = DeadlineExceeded(f"not done within the {self._call.timeout_s:g} s that this request has")
            error = as_kvferry_error(late if deadline.expired() else failure, self._call.request_id)
            if deadline.expired():  # the generator, which did not see it, is cancelled; else it has counted it itself
                self._count(FailureCause.DEADLINE, late.message)
            elif isinstance(error, Overloaded):
                self._count(FailureCause.QUEUE_FULL, error.message)
        finally:
            for place in places:
                place.leave()
        await self._last_word(writer, error)
        return error.code

    def _count(self, cause: FailureCause, message: str) -> None:
        self._front.failures.count(cause, self._call.request_id, message)

    async def _log_prompts(self) -> None:
        """A line a prompt, for operators who asked for it. Nothing else that is logged here has text of prompt or answer."""
        for request in self._plan.requests:
            # Long prompts take long to decode.
            text = await asyncio.to_thread(self._front.tokenizer.decode, request.prompt_token_ids, False)
            LOG.info("request %s, generation %s: prompt %r", self._call.request_id, request.request_id, text)

    async def _last_word(self, writer: Writer, error: KvferryError) -> None:
        try:
            async with asyncio.timeout(LAST_WORD_S):
                await writer.fail(error)
        except TimeoutError:
            # The response stays incomplete, so the server closes the connection: there is nobody left to tell.
            LOG.warning(
                "request %s: the client does not read, its error %s was not delivered",
                self._call.request_id,
                error.code,
            )

    async def _run_requests(self, places: list[Place], writer: Writer) -> None:
        if len(self._tallies) == 1:
            await run_request(self._front, self._plan, self._tallies[0], places, writer)
            return
        async with asyncio.TaskGroup() as group:
            first = 0
            for tallies in self._tallies:
                own = places[first : first + len(tallies)]
                first += len(tallies)
                group.create_task(self._run_one_of_several(tallies, own, writer))

    async def _run_one_of_several(self, tallies: list[ChoiceTally], places: list[Place], writer: Writer) -> None:
        await run_request(self._front, self._plan, tallies, places, writer)
        await writer.flush()  # the others may go on for long

    def _report(self, outcome: str) -> None:
        """Adds to the totals, and logs a line a prompt."""
        took_ms = (time.monotonic() - self._call.arrived_at) * 1e3
        for request, tallies in zip(self._plan.requests, self._tallies, strict=True):
            for tally in tallies:
                tally.report(self._front.metrics, self._call.endpoint, outcome)
            LOG.info(
                "request %s, %s, generation %s: %d prompt tokens, %d cached, %s generated, %s, in %.1f ms%s",
                self._call.request_id,
                self._call.endpoint,
                request.request_id,
                request.num_prompt_tokens,
                tallies[0].cached_tokens,
                "+".join(str(tally.generated_tokens) for tally in tallies),
                "+".join(tally.outcome or outcome for tally in tallies),
                took_ms,
                _crossed(tallies[0]),
            )

    def _usage(self) -> Usage:
        tallies = [one for tallies in self._tallies for one in tallies]
        return Usage(
            prompt_tokens=sum(request.num_prompt_tokens for request in self._plan.requests),
            completion_tokens=sum(tally.generated_tokens for tally in tallies),
            cached_tokens=sum(tally.cached_tokens for tally in tallies),
            kv_wire_bytes=sum(tally.kv_wire_bytes for tally in tallies),
            kv_half_bytes=sum(tally.kv_half_bytes for tally in tallies),
        )


def _crossed(tally: ChoiceTally) -> str:
    """For the log: what KV crossed for a prompt, and its size beside 16 bits; nothing where none did."""
    if not tally.kv_half_bytes:
        return ""
    return f", KV {tally.kv_wire_bytes / 1e6:.2f} MB at {tally.kv_wire_bytes / tally.kv_half_bytes:.3f} of FP16"
