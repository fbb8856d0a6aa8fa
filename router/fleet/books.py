"""What one try of a request adds to the loads of its workers. Whatever is added is taken back, once, however the try ends.

On the way it times what the workers do, which is all that the predictions know of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from protocol.pace import TransferPlan
from protocol.request import GenerateRequest
from router.fleet.cached_tokens import NOTHING_CACHED, CachedTokens
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

    def __init__(
        self,
        request: GenerateRequest,
        decode: Member[DecodeClient],
        transfers: PlannedTransfers,
        cached: CachedTokens = NOTHING_CACHED,
    ) -> None:
        """`cached` is what the workers are thought to have of the prompt: no work is counted for that."""
        self._request = request
        self._cached = cached
        self._decode = decode
        self._transfers = transfers
        self._clock = transfers.clock
        self._local: PromptOrder | None = None
        self._num_cached_locally = 0
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
        num_tokens = self._num_computed_on(prefill)
        prefill.num_queued_tokens += num_tokens
        try:
            yield
        finally:
            prefill.num_queued_tokens -= num_tokens

    def order(self, prefill: Member[PrefillClient]) -> PromptOrder:
        """The prompt is given to a prefill worker on which it is `queued`."""
        return PromptOrder(self._clock(), prefill.num_queued_tokens - self._num_computed_on(prefill))

    def answered(self, prefill: Member[PrefillClient], order: PromptOrder, num_cached_tokens: int) -> None:
        """The prefill worker has answered; `num_cached_tokens` of the prompt it did not compute."""
        self._learn(prefill, order, num_cached_tokens)

    async def sending(self, prefill: Member[PrefillClient], num_bytes: float) -> TransferPlan | None:
        """So many bytes are to cross from a prefill worker on which the prompt is `queued`, until they have `landed` or are
        `given_up`. The plan for it, if the network could be reserved.
        """
        self.given_up()
        self._sending = prefill, num_bytes
        name = self._decode.name
        prefill.backlog_bytes[name] = prefill.backlog_bytes.get(name, 0.0) + num_bytes
        ask = ask_of(self._request, prefill, self._decode, num_bytes, self._cached.read.get(prefill.name, 0))
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
            self._decode.num_queued_tokens += self._num_computed_on(self._decode)

    def was_read(self, num_cached_tokens: int) -> None:
        """The decode worker says that it has read the prompt, of which it did not compute `num_cached_tokens`."""
        self._num_cached_locally = num_cached_tokens

    def first_token(self) -> None:
        """A token has come from the decode worker: it has read the prompt, if it was given it or waited for KV in vain."""
        if self._sending is not None:
            self.given_up()
        if (order := self._local) is not None:
            self._end_local()
            self._learn(self._decode, order, self._num_cached_locally)

    def _end_local(self) -> None:
        if self._local is not None:
            self._local = None
            self._decode.num_queued_tokens -= self._num_computed_on(self._decode)

    def _num_computed_on(self, member: Member[Any]) -> int:
        """Tokens of the prompt that a worker will have to compute, as far as is known."""
        return self._request.num_prompt_tokens - self._cached.read.get(member.name, 0)

    def _learn(self, member: Member[Any], order: PromptOrder, num_cached_tokens: int) -> None:
        num_computed = self._request.num_prompt_tokens - num_cached_tokens
        work = PromptWork(num_computed, num_cached_tokens, order.num_queued_tokens)
        member.prefill_time = member.prefill_time.learn(work, self._clock() - order.at)
