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

from protocol.errors import DeadlineExceeded, KvferryError, Overloaded, StaleTicket, TransferError, WorkerUnavailable
from protocol.ids import new_request_id
from protocol.request import GeneratedToken, GenerateRequest
from router.fleet.attempt import Attempt, AttemptTerms
from router.fleet.failures import FailureCause
from router.fleet.fleet import Fleet
from router.fleet.merge import merge
from router.generation import GenerationEvent, GenerationStart, KvLanded, Readiness
from scheduling.pair_cost import Pair

log = logging.getLogger(__name__)

MOVE_ON: tuple[type[KvferryError], ...] = (WorkerUnavailable, TransferError, StaleTicket)
"""Errors that are a worker's or a wire's, not the request's: somebody else may do better."""


@dataclass(slots=True)
class _Call:
    """A request that runs. `generated` are the tokens of each choice that the client has; `attempts` are those that run,
    by the choice they are for, None standing for all of them together. With a `pair` it goes there or nowhere.
    """

    request: GenerateRequest
    deadline: float
    generated: list[list[int]]
    open_choices: set[int]
    pair: Pair | None = None
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

    @property
    def num_moves(self) -> int:
        """How often requests went on elsewhere after a worker failed them."""
        return self._fleet.failures.num_moves

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
        """One `GenerationStart`, then the tokens of all choices. Moves on when a worker fails it, as often as the fleet's rules
        allow.

        The choices share one attempt. If it fails when some tokens have been given out, each goes on in attempts of its own.
        """
        async with aclosing(self._call(request, self._request_timeout_s)) as batches:
            async for batch in batches:
                yield batch

    async def generate_on(
        self, pair: Pair, request: GenerateRequest, timeout_s: float
    ) -> AsyncGenerator[list[GenerationEvent], None]:
        """As `generate`, by these workers alone, even if they take no other requests: what one of them fails has failed."""
        async with aclosing(self._call(request, timeout_s, pair)) as batches:
            async for batch in batches:
                yield batch

    async def close(self) -> None:
        """Waits for cancellations that are under way."""
        await asyncio.gather(*self._farewells, return_exceptions=True)

    async def _call(
        self, request: GenerateRequest, timeout_s: float, pair: Pair | None = None
    ) -> AsyncGenerator[list[GenerationEvent], None]:
        choices = range(request.num_choices)
        call = _Call(request, time.monotonic() + timeout_s, [[] for _ in choices], set(choices), pair)
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
        except DeadlineExceeded as error:
            self._fleet.failures.count(FailureCause.DEADLINE, request.request_id, error.message)
            raise
        finally:
            del self._calls[request.request_id]

    async def _attempts(self, call: _Call, choice: int | None) -> AsyncGenerator[list[GenerationEvent], None]:
        """Events of one choice, or of all together until that fails with something given out."""
        is_together = choice is None and call.request.num_choices > 1
        num_moves = call.num_moves
        full: set[str] = set()
        while True:
            terms = AttemptTerms(call.deadline, call.request.request_id, frozenset(call.failed | full), call.pair)
            attempt = Attempt(self._fleet, _request_of(call, choice), terms)
            call.attempts[choice] = attempt
            try:
                async with aclosing(attempt.run()) as batches:
                    async for batch in batches:
                        if events := self._counted(call, choice, batch):
                            yield events
                return
            except Overloaded:
                if attempt.full is None or not self._is_decode_left(call, full | {attempt.full}):
                    raise
                full.add(attempt.full)
            except MOVE_ON as error:
                self._check_moves(call, num_moves, error)
                full.clear()
                num_moves += 1
                call.num_moves = max(call.num_moves, num_moves)
                self._fleet.failures.num_moves += 1
                call.failed |= attempt.blamed
                log.warning("request %s goes on elsewhere after %s", call.request.request_id, error.message)
                if is_together and any(call.generated):
                    return
            finally:
                del call.attempts[choice]
                if not attempt.is_settled:
                    self._later(attempt.cancel())

    def _check_moves(self, call: _Call, num_moves: int, error: KvferryError) -> None:
        """Raises the error when the request may not go on elsewhere."""
        if call.pair is not None:
            raise error
        if num_moves >= self._fleet.rules.max_moves:
            message = f"failed after {num_moves} moves (--max-moves): {error.message}"
            self._fleet.failures.count(FailureCause.MOVES_EXHAUSTED, call.request.request_id, message)
            raise error

    def _is_decode_left(self, call: _Call, full: set[str]) -> bool:
        """Whether a decode worker may be asked that has neither failed the request nor been found full."""
        out = call.failed | full
        return call.pair is None and any(
            one.is_available and one.name not in out for one in self._fleet.decodes.values()
        )

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
