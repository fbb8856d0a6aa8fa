"""One try of a request: reserve on D, prefill on P, first tokens to the client at once, the others from D."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from protocol.errors import (
    Blame,
    DeadlineExceeded,
    KvferryError,
    NotConnected,
    NotReady,
    OutOfSlots,
    Overloaded,
    PromptTooLong,
    WorkerUnavailable,
)
from protocol.pace import TransferPlan
from protocol.request import GeneratedToken, GenerateRequest
from protocol.ticket import Ticket
from router.fleet.books import AttemptBooks
from router.fleet.cached_tokens import CachedTokens
from router.fleet.clients import DecodeClient, InboxItem, KvLost, PrefillClient, PrefillOutcome, PromptRead, TokenInbox
from router.fleet.failures import FailureCause
from router.fleet.fleet import Fleet
from router.fleet.member import Member
from router.fleet.question import wire_bytes
from router.fleet.verdict import Verdict
from router.generation import GenerationEvent, GenerationStart, KvLanded
from scheduling.pair_cost import Pair

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AttemptTerms:
    """What a try has to keep to. It ends at `deadline` (monotonic seconds), is of the call that the log names `call_id`, and
    goes to none of the `excluded` workers; with a `pair`, to this one and no other, whatever is known of it.
    """

    deadline: float
    call_id: str
    excluded: frozenset[str] = frozenset()
    pair: Pair | None = None


class Attempt:
    """One try of a request on one decode worker. `blamed` names the workers that failed it, `full` the decode worker that had
    no place for it; once `is_settled` none of the workers holds anything of it.
    """

    def __init__(self, fleet: Fleet, request: GenerateRequest, terms: AttemptTerms) -> None:
        self.request = request
        self.blamed: set[str] = set()
        self.full: str | None = None
        self.is_settled = False
        self._fleet = fleet
        self._terms = terms
        self._verdict = Verdict(fleet.failures, fleet.rules.clock, terms.call_id)
        self._open_choices = set(range(request.num_choices))
        self._abandoned: set[int] = set()
        self._is_decode_at_fault = False
        self._is_prefill_at_fault = False
        self._is_taken = False
        self._has_landed = False
        self._is_sent = False
        self._lost: KvferryError | None = None
        self._has_decoded = False
        self._prefill: Member[PrefillClient] | None = None
        self._decode: Member[DecodeClient] | None = None
        self._inbox: TokenInbox | None = None

    async def run(self) -> AsyncGenerator[list[GenerationEvent], None]:
        """The events of this try, with indices of its own; those that are ready together are one item."""
        cached = self._fleet.cached_tokens(self.request)
        pair = self._terms.pair or self._choose(cached)
        decode = self._decode = self._fleet.decodes[pair.decode]
        inbox = self._inbox = decode.client.open(self.request.request_id, self._remaining_s())
        books = AttemptBooks(self.request, decode, self._fleet.transfers, cached)
        try:
            with books.stay():
                async with aclosing(self._first_events(decode, pair.prefill, inbox, books)) as batches:
                    async for batch in batches:
                        yield batch
                while self._open_choices:
                    if events := self._wanted(inbox.take(), books):
                        yield events
                    else:
                        await inbox.arrival()
        except KvferryError as error:
            if not self._is_prefill_at_fault:
                self._verdict.decode_failed(decode, error, is_refusal=not self._is_taken)
                if isinstance(error, WorkerUnavailable):
                    self.blamed.add(decode.name)
                elif isinstance(error, Overloaded) and not self._is_taken:
                    self.full = decode.name
                    self.is_settled = True
            raise
        finally:
            decode.client.close_inbox(self.request.request_id)

    async def abandon(self, choice: int) -> None:
        """Ends one choice; its tokens no longer come. A worker that cannot be told goes on with it to its end."""
        self._abandoned.add(choice)
        self._open_choices.discard(choice)
        if self._inbox is not None:
            self._inbox.wake()
        if self._decode is not None:
            await self._cancel_on(self._decode, choice=choice, is_owed=False)

    async def cancel(self) -> None:
        """Ends the request on both workers. A worker that cannot be reached has nothing to cancel, or its lease will."""
        members: list[Member[PrefillClient] | Member[DecodeClient] | None] = [self._prefill, self._decode]
        await asyncio.gather(*(self._cancel_on(one, is_owed=True) for one in members if one is not None))

    def _choose(self, cached: CachedTokens) -> Pair:
        try:
            return self._fleet.choose(self.request, self._terms.excluded, cached)
        except NotReady as error:
            self._fleet.failures.count(FailureCause.NO_DECODE, self._terms.call_id, error.message)
            raise

    def _wanted(self, items: list[InboxItem], books: AttemptBooks) -> list[GenerationEvent]:
        """What has come, but for tokens of choices that were abandoned."""
        events: list[GenerationEvent] = []
        has_token = False
        for item in items:
            if isinstance(item, GeneratedToken):
                if not has_token:
                    has_token = True
                    books.first_token()
                if not self._has_decoded:
                    self._first_decoded()
                if item.choice in self._abandoned:
                    continue
                events.append(item)
                if item.finish is not None:
                    self._open_choices.discard(item.choice)
                    self.is_settled = not self._open_choices and not self._abandoned
                    if self._decode is not None:
                        self._verdict.served(self._decode)
            elif isinstance(item, KvLanded):
                books.landed()
                self._has_landed = True
                events.append(item)
            elif isinstance(item, KvLost):
                self._lost = item.error
            else:
                books.was_read(item.num_cached_tokens)
        return events

    def _first_decoded(self) -> None:
        """The first token of the decode worker is here: what it says of the way that the request has gone."""
        self._has_decoded = True
        if self._has_landed or not self._fleet.prefills:
            self._fleet.proof.succeeded(self._fleet.rules.clock())
        elif self._is_sent and self._decode is not None:
            self._verdict.nothing_landed(self._decode, self._lost)

    async def _cancel_on(
        self, member: Member[PrefillClient] | Member[DecodeClient], *, is_owed: bool, choice: int | None = None
    ) -> None:
        """With `is_owed` a worker that cannot be told now is told when it answers again."""
        try:
            if not member.is_healthy:
                raise WorkerUnavailable(f"{member.name} does not answer")
            await member.client.cancel(self.request.request_id, choice)
        except KvferryError as error:
            if is_owed:
                member.uncancelled.add(self.request.request_id)
            log.warning("request %s could not be cancelled on %s: %s", self.request.request_id, member.name, error)

    async def _first_events(
        self, decode: Member[DecodeClient], prefill_name: str | None, inbox: TokenInbox, books: AttemptBooks
    ) -> AsyncGenerator[list[GenerationEvent], None]:
        """Start and first tokens by way of a prefill worker; the start alone when the decode worker reads the prompt."""
        tried: set[str] = set()
        while prefill_name is not None:
            prefill = self._prefill = self._fleet.prefills[prefill_name]
            try:
                with books.queued(prefill):
                    ticket = await self._reserve(prefill, decode)
                    outcome = await self._prefill_on(prefill, decode, ticket, books)
            except KvferryError as error:
                await self._give_up_on(prefill, decode, books, error)
                tried.add(prefill.name)
                # Without landing slots, whoever else reads the prompt could not send its KV there either.
                is_full = isinstance(error, OutOfSlots)
                prefill_name = None if is_full else self._another_prefill(decode.name, tried)
                continue
            self._verdict.served(prefill)
            for token in outcome.first_tokens:
                if token.finish is not None:
                    self._open_choices.discard(token.choice)
            # An answer that ends with its first tokens leaves a reservation behind, if there is one.
            self.is_settled = ticket is None and not self._open_choices
            start = GenerationStart(outcome.num_cached_tokens, outcome.prompt_logprobs)
            yield [start, *(token for token in outcome.first_tokens if token.choice not in self._abandoned)]
            # Counted now: what the client was given may have made it abandon a choice.
            going_on = [token for token in outcome.first_tokens if token.choice in self._open_choices]
            if ticket is not None and going_on:
                self._is_sent = True
                await decode.client.decode(ticket, going_on)
            return
        books.reads_itself()
        await decode.client.generate(self.request, self._remaining_s())
        self._is_taken = True
        read = await self._prompt_read(decode, inbox)
        books.was_read(read.num_cached_tokens)
        wants_scores = self.request.num_prompt_logprobs is not None
        yield [GenerationStart(read.num_cached_tokens, read.scores if wants_scores else None)]

    async def _give_up_on(
        self, prefill: Member[PrefillClient], decode: Member[DecodeClient], books: AttemptBooks, error: KvferryError
    ) -> None:
        """A prefill worker failed the request, or has nowhere to send its KV: somebody else may be asked to read the prompt.
        Raises what nobody else could do better.
        """
        # A prompt that is too long for a prefill worker was not for the decode worker, which reserved for it.
        is_clients = error.blame is Blame.CLIENT and not isinstance(error, PromptTooLong)
        if self._is_decode_at_fault or is_clients or isinstance(error, DeadlineExceeded):
            raise error  # the time that is over is the request's own, by whosever clock
        if isinstance(error, OutOfSlots):
            self._verdict.decode_failed(decode, error, is_refusal=True)
        else:
            self._verdict.prefill_failed(prefill, error)
        if self._terms.pair is not None:
            self._is_prefill_at_fault = True
            raise error
        self._remaining_s()
        books.given_up()
        self._is_taken = False
        # The decode worker is asked again under the same id, which a cancellation told later would hit.
        await asyncio.gather(self._cancel_on(prefill, is_owed=True), self._cancel_on(decode, is_owed=False))

    async def _prompt_read(self, decode: Member[DecodeClient], inbox: TokenInbox) -> PromptRead:
        landed: list[InboxItem] = []  # of an earlier try with a prefill worker
        while True:
            while not (items := inbox.take()):
                await inbox.arrival()
            for number, item in enumerate(items):
                if isinstance(item, PromptRead):
                    inbox.put_back([*landed, *items[number + 1 :]])
                    return item
                if isinstance(item, GeneratedToken):
                    raise KvferryError(f"{decode.name} sent a token of a prompt before it said that it had read it")
                landed.append(item)

    async def _reserve(self, prefill: Member[PrefillClient], decode: Member[DecodeClient]) -> Ticket | None:
        """Before the prefill starts: no prompt is computed that nobody can receive. A single token needs no receiver."""
        if self.request.stop.max_tokens == 1:
            return None
        worker = prefill.description.worker
        try:
            ticket = await decode.client.reserve(self.request, worker, self._remaining_s())
        except NotConnected:
            # The decode worker does not know this prefill worker; it may know another. Let them shake hands again.
            prefill.links.pop(decode.name, None)
            raise
        except OutOfSlots:
            raise  # it can read the prompt itself
        except KvferryError:
            self._is_decode_at_fault = True
            raise
        self._is_taken = True
        return ticket

    async def _prefill_on(
        self, prefill: Member[PrefillClient], decode: Member[DecodeClient], ticket: Ticket | None, books: AttemptBooks
    ) -> PrefillOutcome:
        plan: TransferPlan | None = None
        if ticket is not None:
            layouts = prefill.description.layout, decode.description.layout
            num_bytes = wire_bytes(self.request, *layouts, self._fleet.rules.wire, ticket.first_token)
            plan = await books.sending(prefill, num_bytes)
        order = books.order(prefill)
        outcome = await prefill.client.prefill(self.request, ticket, self._remaining_s(), plan)
        books.answered(prefill, order, outcome.num_cached_tokens)
        return outcome

    def _another_prefill(self, decode_name: str, tried: set[str]) -> str | None:
        """Another prefill worker linked to the same decode worker, each once; None when there is none left."""
        for name, member in self._fleet.prefills.items():
            is_free = name not in tried and name not in self._terms.excluded
            if is_free and member.is_available and decode_name in member.links:
                return name
        return None

    def _remaining_s(self) -> float:
        """Raises `DeadlineExceeded` when nothing remains."""
        remaining_s = self._terms.deadline - time.monotonic()
        if remaining_s <= 0:
            raise DeadlineExceeded("the request was not finished before its deadline")
        return remaining_s
