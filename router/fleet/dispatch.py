"""The life of a request over a fleet: one attempt after another, until all of its choices have ended.

What fails is done again elsewhere, from the tokens that the client has: since sampling depends on logits, parameters, seed,
position and the tokens so far only, the text goes on as if nothing had happened.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field, replace

from protocol.errors import KvferryError, StaleTicket, TransferError, WorkerUnavailable
from protocol.ids import new_request_id
from protocol.request import GeneratedToken, GenerateRequest
from router.fleet.attempt import Attempt
from router.fleet.fleet import Fleet
from router.fleet.merge import merge
from router.generation import GenerationEvent, GenerationStart, KvLanded, Readiness

log = logging.getLogger(__name__)

MAX_MOVES = 3
"""How often one request, or one of several choices that go on apart, may start again after a worker failed it."""
MOVE_ON: tuple[type[KvferryError], ...] = (WorkerUnavailable, TransferError, StaleTicket)
"""Errors that are a worker's or a wire's, not the request's: somebody else may do better."""


@dataclass(slots=True)
class _Call:
    """A request that runs. `generated` are the tokens of each choice that the client has; `attempts` are those that run,
    by the choice they are for, None standing for all of them together.
    """

    request: GenerateRequest
    deadline: float
    generated: list[list[int]]
    open_choices: set[int]
    is_started: bool = False
    num_moves: int = 0
    failed: set[str] = field(default_factory=set)
    attempts: dict[int | None, Attempt] = field(default_factory=dict)


class Dispatcher:
    """The router's `Generator` over a fleet."""

    def __init__(self, fleet: Fleet, request_timeout_s: float) -> None:
        self._fleet = fleet
        self._request_timeout_s = request_timeout_s
        self._calls: dict[str, _Call] = {}
        self._farewells: set[asyncio.Task[None]] = set()
        self.num_moves = 0

    def readiness(self) -> Readiness:
        """The fleet's."""
        return self._fleet.readiness()

    def abandon(self, request_id: str, choice: int) -> None:
        """One choice of a running request is not wanted any more, while others are."""
        call = self._calls.get(request_id)
        if call is None or choice not in call.open_choices:
            return
        call.open_choices.discard(choice)
        if (alone := call.attempts.get(choice)) is not None:
            self._later(alone.abandon(0))
        elif (together := call.attempts.get(None)) is not None:
            self._later(together.abandon(choice))

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[list[GenerationEvent], None]:
        """One `GenerationStart`, then the tokens of all choices. Moves on, `MAX_MOVES` times at most, when a worker fails it.

        The choices share one attempt. If it fails when some tokens have been given out, each goes on in attempts of its own.
        """
        choices = range(request.num_choices)
        deadline = time.monotonic() + self._request_timeout_s
        call = _Call(request, deadline, [[] for _ in choices], set(choices))
        self._calls[request.request_id] = call
        try:
            async with aclosing(self._attempts(call, None)) as batches:
                async for batch in batches:
                    yield batch
            if call.open_choices:
                streams = [self._attempts(call, choice) for choice in sorted(call.open_choices)]
                async with aclosing(merge(streams)) as batches:
                    async for batch in batches:
                        yield batch
        finally:
            del self._calls[request.request_id]

    async def close(self) -> None:
        """Waits for cancellations that are under way."""
        await asyncio.gather(*self._farewells, return_exceptions=True)

    async def _attempts(self, call: _Call, choice: int | None) -> AsyncGenerator[list[GenerationEvent], None]:
        """Events of one choice, or of all together until that fails with something given out."""
        is_together = choice is None and call.request.num_choices > 1
        num_moves = call.num_moves
        while True:
            attempt = Attempt(self._fleet, _request_of(call, choice), call.deadline, frozenset(call.failed))
            call.attempts[choice] = attempt
            try:
                async with aclosing(attempt.run()) as batches:
                    async for batch in batches:
                        if events := self._counted(call, choice, batch):
                            yield events
                return
            except MOVE_ON as error:
                if num_moves == MAX_MOVES:
                    raise
                num_moves += 1
                call.num_moves = max(call.num_moves, num_moves)
                self.num_moves += 1
                call.failed |= attempt.blamed
                log.warning("request %s goes on elsewhere after %s", call.request.request_id, error.message)
                if is_together and any(call.generated):
                    return
            finally:
                del call.attempts[choice]
                if not attempt.is_settled:
                    self._later(attempt.cancel())

    def _counted(self, call: _Call, choice: int | None, batch: list[GenerationEvent]) -> list[GenerationEvent]:
        """The events of an attempt as the client counts them, without those that it has or does not want."""
        events: list[GenerationEvent] = []
        for event in batch:
            if not isinstance(event, GeneratedToken):
                if isinstance(event, KvLanded) or not call.is_started:
                    events.append(event)
                call.is_started |= isinstance(event, GenerationStart)
                continue
            own = event.choice if choice is None else choice
            if own not in call.open_choices:
                continue
            call.generated[own].append(event.token_id)
            if event.finish is not None:
                call.open_choices.discard(own)
                self._fleet.last_success_at = time.monotonic()
            # The first attempt counts as the client does.
            events.append(event if call.num_moves == 0 else _renamed(call, own, event))
        return events

    def _later(self, work: Coroutine[None, None, None]) -> None:
        """Tells workers what is not wanted any more, without keeping the client waiting."""
        task = asyncio.create_task(work)
        self._farewells.add(task)
        task.add_done_callback(self._farewells.discard)


def _renamed(call: _Call, choice: int, token: GeneratedToken) -> GeneratedToken:
    index = len(call.generated[choice]) - 1
    return replace(token, request_id=call.request.request_id, index=index, choice=choice)


def _request_of(call: _Call, choice: int | None) -> GenerateRequest:
    """What an attempt asks for: all that is still to come, or the rest of one choice. Only the first has the request's own
    id: no late message is mistaken for one of another attempt's.
    """
    if call.num_moves == 0:
        return call.request
    request = replace(call.request, num_prompt_logprobs=None) if call.is_started else call.request
    if choice is None and request.num_choices > 1:
        return replace(request, request_id=new_request_id())
    return continuation(request, call.generated[choice or 0], choice or 0)


def continuation(request: GenerateRequest, generated: list[int], choice: int = 0) -> GenerateRequest:
    """The request that continues a choice after `generated`, under an id of its own."""
    stop = request.stop
    num_generated = len(generated)
    return replace(
        request,
        request_id=new_request_id(),
        prompt_token_ids=(*request.prompt_token_ids, *generated),
        stop=replace(
            stop, max_tokens=stop.max_tokens - num_generated, min_tokens=max(0, stop.min_tokens - num_generated)
        ),
        sampling=request.sampling_of(choice),
        num_choices=1,
        num_continued=request.num_continued + num_generated,
    )
