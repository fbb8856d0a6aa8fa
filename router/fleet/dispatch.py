"""The life of a request: reserve on D, prefill on P, first token to the client at once, the others from D.

What fails is done again elsewhere, from the tokens that the client has: since sampling depends on logits, parameters, seed
and position only, the text goes on as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from protocol.errors import (
    Blame,
    DeadlineExceeded,
    KvferryError,
    NotConnected,
    PromptTooLong,
    StaleTicket,
    TransferError,
    WorkerUnavailable,
)
from protocol.ids import new_request_id
from protocol.request import GeneratedToken, GenerateRequest, StopRule
from protocol.ticket import Ticket
from router.fleet.clients import DecodeClient, PrefillClient
from router.fleet.fleet import Fleet
from router.fleet.member import Member
from router.generation import GenerationEvent, GenerationStart, Readiness

log = logging.getLogger(__name__)

MAX_MOVES = 3
"""How often one request may start again after a worker failed it."""
CANCEL_TIMEOUT_S = 5.0
MOVE_ON: tuple[type[KvferryError], ...] = (WorkerUnavailable, TransferError, StaleTicket)
"""Errors that are a worker's or a wire's, not the request's: somebody else may do better."""


class Dispatcher:
    """The router's `Generator` over a fleet."""

    def __init__(self, fleet: Fleet, request_timeout_s: float) -> None:
        self._fleet = fleet
        self._request_timeout_s = request_timeout_s
        self._farewells: set[asyncio.Task[None]] = set()
        self.num_moves = 0

    def readiness(self) -> Readiness:
        """The fleet's."""
        return self._fleet.readiness()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[GenerationEvent, None]:
        """One `GenerationStart`, then the answer's tokens. Moves on, `MAX_MOVES` times at most, when a worker fails it."""
        deadline = time.monotonic() + self._request_timeout_s
        generated: list[int] = []
        failed: set[str] = set()
        is_started = False
        for num_moves in range(MAX_MOVES + 1):
            attempt = _Attempt(self._fleet, continuation(request, generated), deadline, frozenset(failed))
            try:
                async with aclosing(attempt.run()) as events:
                    async for event in events:
                        if isinstance(event, GenerationStart):
                            if not is_started:
                                yield event
                            is_started = True
                            continue
                        generated.append(event.token_id)
                        if event.finish is not None:
                            self._fleet.last_success_at = time.monotonic()
                        yield replace(event, request_id=request.request_id, index=len(generated) - 1)
                        if event.finish is not None:
                            return
            except MOVE_ON as error:
                if num_moves == MAX_MOVES:
                    raise
                self.num_moves += 1
                failed |= attempt.blamed
                log.warning("request %s goes on elsewhere after %s", request.request_id, error.message)
            finally:
                self._say_farewell(attempt)

    async def close(self) -> None:
        """Waits for cancellations that are under way."""
        await asyncio.gather(*self._farewells, return_exceptions=True)

    def _say_farewell(self, attempt: _Attempt) -> None:
        """Cancels what an attempt left behind, without keeping the client waiting."""
        if attempt.is_settled:
            return
        task = asyncio.create_task(attempt.cancel())
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)


def continuation(request: GenerateRequest, generated: list[int]) -> GenerateRequest:
    """The request that continues `request` after `generated`, under an id of its own: no late message is mistaken."""
    return GenerateRequest(
        request_id=new_request_id(),
        prompt_token_ids=(*request.prompt_token_ids, *generated),
        stop=StopRule(request.stop.max_tokens - len(generated), request.stop.stop_token_ids),
        sampling=request.sampling,
    )


class _Attempt:
    """One try of a request on one decode worker. `blamed` names the workers that failed it; once `is_settled` none of the
    workers holds anything of it.
    """

    def __init__(self, fleet: Fleet, request: GenerateRequest, deadline: float, excluded: frozenset[str]) -> None:
        self.request = request
        self.blamed: set[str] = set()
        self.is_settled = False
        self._fleet = fleet
        self._deadline = deadline
        self._excluded = excluded
        self._is_decode_at_fault = False
        self._prefill: Member[PrefillClient] | None = None
        self._decode: Member[DecodeClient] | None = None

    async def run(self) -> AsyncGenerator[GenerationEvent, None]:
        """The events of this try, with indices of its own."""
        pair = self._fleet.choose(self.request.num_prompt_tokens, self._excluded)
        decode = self._decode = self._fleet.decodes[pair.decode]
        inbox = decode.client.open(self.request.request_id)
        decode.num_active += 1
        decode.num_held_tokens += self.request.max_total_tokens
        is_finished = False
        try:
            async with aclosing(self._first_events(decode, pair.prefill)) as events:
                async for event in events:
                    is_finished = isinstance(event, GeneratedToken) and event.finish is not None
                    yield event
            while not is_finished:
                token = await decode.answer(self._remaining_s(), inbox.next())
                self.is_settled = is_finished = token.finish is not None
                yield token
        except WorkerUnavailable:
            self.blamed.add(decode.name)
            raise
        finally:
            decode.num_active -= 1
            decode.num_held_tokens -= self.request.max_total_tokens
            decode.client.close_inbox(self.request.request_id)

    async def cancel(self) -> None:
        """Ends the request on both workers. A worker that cannot be reached has nothing to cancel, or its lease will."""
        members: list[Member[PrefillClient] | Member[DecodeClient] | None] = [self._prefill, self._decode]
        await asyncio.gather(*(self._cancel_on(one, is_owed=True) for one in members if one is not None))

    async def _cancel_on(self, member: Member[PrefillClient] | Member[DecodeClient], *, is_owed: bool) -> None:
        """With `is_owed` a worker that cannot be told now is told when it answers again."""
        try:
            if not member.is_healthy:
                raise WorkerUnavailable(f"{member.name} does not answer")
            await member.answer(CANCEL_TIMEOUT_S, member.client.cancel(self.request.request_id))
        except KvferryError as error:
            if is_owed:
                member.uncancelled.add(self.request.request_id)
            log.warning("request %s could not be cancelled on %s: %s", self.request.request_id, member.name, error)

    async def _first_events(
        self, decode: Member[DecodeClient], prefill_name: str | None
    ) -> AsyncGenerator[GenerationEvent, None]:
        """Start and first token by way of a prefill worker; the start alone when the decode worker reads the prompt."""
        tried: set[str] = set()
        while prefill_name is not None:
            prefill = self._prefill = self._fleet.prefills[prefill_name]
            prefill.num_queued_tokens += self.request.num_prompt_tokens
            try:
                ticket = await self._reserve(prefill, decode)
                first, num_cached = await self._prefill_on(prefill, ticket)
            except KvferryError as error:
                # A prompt that is too long for a prefill worker was not for the decode worker, which reserved for it.
                is_clients = error.blame is Blame.CLIENT and not isinstance(error, PromptTooLong)
                if self._is_decode_at_fault or is_clients or time.monotonic() >= self._deadline:
                    raise
                log.warning("request %s: %s failed: %s", self.request.request_id, prefill.name, error.message)
                tried.add(prefill.name)
                # The decode worker is asked again under the same id, which a cancellation told later would hit.
                await asyncio.gather(self._cancel_on(prefill, is_owed=True), self._cancel_on(decode, is_owed=False))
                prefill_name = self._another_prefill(decode.name, tried)
                continue
            finally:
                prefill.num_queued_tokens -= self.request.num_prompt_tokens
            # An answer that ends with its first token leaves a reservation behind, if there is one: a farewell is due.
            self.is_settled = ticket is None and first.finish is not None
            yield GenerationStart(num_cached)
            yield first
            if ticket is not None and first.finish is None:
                await decode.answer(self._remaining_s(), decode.client.decode(ticket, first))
            return
        remaining_s = self._remaining_s()
        await decode.answer(remaining_s, decode.client.generate(self.request, remaining_s))
        yield GenerationStart(0)

    async def _reserve(self, prefill: Member[PrefillClient], decode: Member[DecodeClient]) -> Ticket | None:
        """Before the prefill starts: no prompt is computed that nobody can receive. A single token needs no receiver."""
        if self.request.stop.max_tokens == 1:
            return None
        worker = prefill.description.worker
        try:
            remaining_s = self._remaining_s()
            return await decode.answer(remaining_s, decode.client.reserve(self.request, worker, remaining_s))
        except NotConnected:
            # The decode worker does not know this prefill worker; it may know another. Let them shake hands again.
            prefill.links.pop(decode.name, None)
            raise
        except KvferryError:
            self._is_decode_at_fault = True
            raise

    async def _prefill_on(self, prefill: Member[PrefillClient], ticket: Ticket | None) -> tuple[GeneratedToken, int]:
        start = time.monotonic()
        remaining_s = self._remaining_s()
        answer = await prefill.answer(remaining_s, prefill.client.prefill(self.request, ticket, remaining_s))
        prefill.time_prefill(self.request.num_prompt_tokens, time.monotonic() - start)
        return answer

    def _another_prefill(self, decode_name: str, tried: set[str]) -> str | None:
        """Another prefill worker linked to the same decode worker, each once; None when there is none left."""
        for name, member in self._fleet.prefills.items():
            if name not in tried and name not in self._excluded and member.is_healthy and decode_name in member.links:
                return name
        return None

    def _remaining_s(self) -> float:
        """Raises `DeadlineExceeded` when nothing remains."""
        remaining_s = self._deadline - time.monotonic()
        if remaining_s <= 0:
            raise DeadlineExceeded("the request was not finished before its deadline")
        return remaining_s
