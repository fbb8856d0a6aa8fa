"""What one try of a request adds to the loads of its workers. Whatever is added is taken back, once, however the try ends.

On the way it times what the workers do, which is all that the predictions know of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from protocol.pace import TransferPlan
from protocol.request import GenerateRequest
from router.fleet.clients import DecodeClient, PrefillClient
from router.fleet.member import Member
from router.fleet.planned_transfers import PlannedTransfer, PlannedTransfers, ask_of
from scheduling.prefill_time import PromptWork


@dataclass(frozen=True, slots=True)
class PromptOrder:
    """A prompt given to a worker at `at` (seconds), behind `num_queued_tokens` of others."""

    at: float
    num_queued_tokens: int


class AttemptBooks:
    """The books of one try on one decode worker."""

    def __init__(self, request: GenerateRequest, decode: Member[DecodeClient], transfers: PlannedTransfers) -> None:
        self._request = request
        self._decode = decode
        self._transfers = transfers
        self._clock = transfers.clock
        self._local: PromptOrder | None = None
        self._sending: tuple[Member[PrefillClient], float] | None = None
        self._planned: PlannedTransfer | None = None

    @contextmanager
    def stay(self) -> Iterator[None]:
        """The request has its place on the decode worker. What ends without an error tells how long such a place is held."""
        decode, start = self._decode, self._clock()
        decode.num_active += 1
        decode.num_held_tokens += self._request.max_held_tokens
        try:
            yield
            decode.time_stay(self._clock() - start)
        finally:
            decode.num_active -= 1
            decode.num_held_tokens -= self._request.max_held_tokens
            self.given_up()
            self._end_local()

    @contextmanager
    def queued(self, prefill: Member[PrefillClient]) -> Iterator[None]:
        """The prompt waits for, or is read by, a prefill worker."""
        prefill.num_queued_tokens += self._request.num_prompt_tokens
        try:
            yield
        finally:
            prefill.num_queued_tokens -= self._request.num_prompt_tokens

    def order(self, prefill: Member[PrefillClient]) -> PromptOrder:
        """The prompt is given to a prefill worker on which it is `queued`."""
        return PromptOrder(self._clock(), prefill.num_queued_tokens - self._request.num_prompt_tokens)

    def answered(self, prefill: Member[PrefillClient], order: PromptOrder, num_cached_tokens: int) -> None:
        """The prefill worker has answered; `num_cached_tokens` of the prompt it did not compute."""
        num_computed = self._request.num_prompt_tokens - num_cached_tokens
        work = PromptWork(num_computed, num_cached_tokens, order.num_queued_tokens)
        prefill.prefill_time = prefill.prefill_time.learn(work, self._clock() - order.at)

    async def sending(self, prefill: Member[PrefillClient], num_bytes: float) -> TransferPlan | None:
        """So many bytes are to cross from a prefill worker on which the prompt is `queued`, until they have `landed` or are
        `given_up`. The plan for it, if the network could be reserved.
        """
        self.given_up()
        self._sending = prefill, num_bytes
        name = self._decode.name
        prefill.backlog_bytes[name] = prefill.backlog_bytes.get(name, 0.0) + num_bytes
        ask = ask_of(self._request, prefill, self._decode, num_bytes)
        self._planned = await self._transfers.reserve(ask, prefill.client)
        return self._planned.plan if self._planned is not None else None

    def landed(self) -> None:
        """The decode worker has all that was sent."""
        self._nothing_on_link()
        if self._planned is not None:
            self._planned.landed()

    def given_up(self) -> None:
        """Nothing more comes of what is sent, unless it has landed already."""
        self._nothing_on_link()
        if self._planned is not None:
            self._planned.close()
            self._planned = None

    def _nothing_on_link(self) -> None:
        if self._sending is None:
            return
        prefill, num_bytes = self._sending
        self._sending = None
        left = prefill.backlog_bytes.get(self._decode.name, 0.0) - num_bytes
        if left > 0.5:  # bytes; sums of fractions do not quite cancel
            prefill.backlog_bytes[self._decode.name] = left
        else:
            prefill.backlog_bytes.pop(self._decode.name, None)

    def reads_itself(self) -> None:
        """The decode worker is given the prompt to read."""
        if self._local is None:
            self._local = PromptOrder(self._clock(), self._decode.num_queued_tokens)
            self._decode.num_queued_tokens += self._request.num_prompt_tokens

    def first_token(self) -> None:
        """A token has come from the decode worker: it has read the prompt, if it was given it or waited for KV in vain."""
        if self._sending is not None:
            self.given_up()
        if (order := self._local) is not None:
            self._end_local()
            work = PromptWork(self._request.num_prompt_tokens, 0, order.num_queued_tokens)
            self._decode.prefill_time = self._decode.prefill_time.learn(work, self._clock() - order.at)

    def _end_local(self) -> None:
        if self._local is not None:
            self._local = None
            self._decode.num_queued_tokens -= self._request.num_prompt_tokens
