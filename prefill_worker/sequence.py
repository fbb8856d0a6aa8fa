"""One prompt on a prefill worker: its phase, its blocks, its ticket, its choices and who waits for their first tokens."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from engine.attention.importance import MAX_QUERIES
from engine.batch import Draw, PromptScoring, SequenceSlice, StepResult, TokenImportance
from engine.block_pool import BlockTable
from prefill_worker.importance import after_slice, wants_window
from protocol.errors import KvferryError
from protocol.pace import TransferPlan
from protocol.phase import Phase, PhaseRecord
from protocol.prefix import HashChain
from protocol.request import GeneratedToken, GenerateRequest, PromptLogprobs, TokenLogprobs
from protocol.ticket import Ticket
from scheduling.work import Work
from transfer.progress import OnProgress


@dataclass(frozen=True, slots=True)
class PrefillAnswer:
    """What a prompt that was read leads to.

    `first_tokens` has one for each choice, in their order, without choices that were cancelled meanwhile; `num_cached_tokens`
    of the prompt came from this worker's prefix cache; `prompt_logprobs` are there when the request asked for them.
    """

    first_tokens: tuple[GeneratedToken, ...]
    num_cached_tokens: int
    prompt_logprobs: PromptLogprobs | None = None


def fail_with(answer: Future[Any], done: Future[None]) -> None:
    """An answer that was promised ends with the error of what should have led to it, if it has one."""
    error = done.exception()
    if error is not None and answer.set_running_or_notify_cancel():
        answer.set_exception(error)


def refused(error: KvferryError) -> Future[PrefillAnswer]:
    """The answer to a prompt that is not even queued."""
    answer: Future[PrefillAnswer] = Future()
    answer.set_exception(error)
    return answer


@dataclass(frozen=True, slots=True, eq=False)
class Submission:
    """A prompt as it was handed in, and who waits for its answer. `on_progress` is told of a transfer that has a plan; `chain`
    names the prompt's blocks, where any are kept.
    """

    request: GenerateRequest
    ticket: Ticket | None
    deadline_s: float
    plan: TransferPlan | None = None
    on_progress: OnProgress | None = None
    chain: HashChain | None = None
    answer: Future[PrefillAnswer] = field(default_factory=Future)

    def sequence(self, arrival: int, now: float) -> PrefillSequence:
        """The prompt as it begins to wait, the `arrival`th on this worker."""
        return PrefillSequence(
            request=self.request,
            ticket=self.ticket,
            arrival=arrival,
            arrived_at=now,
            expires_at=now + self.deadline_s,
            answer=self.answer,
            plan=self.plan,
            chain=self.chain,
        )


@dataclass(slots=True)
class PrefillSequence:
    """Owns `table` from admission until the last chunk has been taken or given up.

    `choices` are the answers that are still wanted; once the first tokens are drawn, those that go on. `importance` is that
    of the tokens cached, where the ticket's KV is written by it; `plan`, with the newest pace, is there when the network was
    reserved. The first `num_cached_at_start` of the `num_cached` tokens came from the prefix cache; while it waits, both are
    what would be found there.
    """

    request: GenerateRequest
    ticket: Ticket | None
    arrival: int
    arrived_at: float
    expires_at: float
    answer: Future[PrefillAnswer] = field(default_factory=Future)
    table: BlockTable | None = None
    num_cached: int = 0
    num_cached_at_start: int = 0
    scores: list[TokenLogprobs] = field(default_factory=list)
    importance: TokenImportance | None = None
    plan: TransferPlan | None = None
    chain: HashChain | None = None
    record: PhaseRecord = field(init=False)
    choices: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.record = PhaseRecord(Phase.WAITING, self.arrived_at)
        self.choices = list(range(self.request.num_choices))

    @property
    def work(self) -> Work:
        """What the scheduler sees."""
        return Work(
            request_id=self.request.request_id,
            num_known=self.request.num_prompt_tokens,
            num_cached=self.num_cached,
            arrival=self.arrival,
            arrival_s=self.arrived_at,
            priority=self.request.priority,
            num_cached_at_start=self.num_cached_at_start,
            is_continued=self.request.num_continued > 0,
        )

    @property
    def is_started(self) -> bool:
        """Whether something of it was computed."""
        return self.num_cached > self.num_cached_at_start

    @property
    def num_reusable_tokens(self) -> int:
        """So many tokens from the first on, less one, may come from a prefix cache; 0 if none may.

        A prompt that is scored needs the logits of all its tokens, and one whose importance is asked for the queries that are.
        """
        if self.chain is None or self.request.num_prompt_logprobs is not None:
            return 0
        num_asked = MAX_QUERIES if wants_window(self.ticket) else 1
        return max(0, self.request.num_prompt_tokens - num_asked + 1)

    def begin_at(self, num_cached: int) -> None:
        """Nothing of it was computed, but so many tokens need not be."""
        self.num_cached = self.num_cached_at_start = num_cached

    def drop_choice(self, choice: int) -> bool:
        """One answer less is wanted; false if it was not."""
        if choice not in self.choices:
            return False
        self.choices.remove(choice)
        return True

    def shipped(self, now: float) -> None:
        """Its transfer has ended, well or not: nothing reads its blocks any more but what still computes."""
        self.ticket = None
        if self.record.phase is Phase.SHIPPING:
            self.move(now, Phase.FINISHED)
        if self.record.is_terminal:
            self.release()

    def fail(self, error: KvferryError) -> None:
        """Tells whoever still waits for the answer that there will be none."""
        if not self.answer.done() and self.answer.set_running_or_notify_cancel():
            self.answer.set_exception(error)

    def move(self, now: float, to: Phase) -> None:
        """Advances the phase. Raises `IllegalMove`."""
        self.record = self.record.advance(now, to)

    def slice_of(self, num_tokens: int) -> SequenceSlice:
        """The next `num_tokens` prompt tokens; the prompt's last chunk also draws the first token of each choice."""
        if self.table is None:
            raise RuntimeError(f"request {self.request.request_id} has no blocks")
        end = self.num_cached + num_tokens
        return SequenceSlice(
            request_id=self.request.request_id,
            token_ids=self.request.prompt_token_ids[self.num_cached : end],
            start=self.num_cached,
            block_ids=self.table.block_ids,
            draws=self._draws() if end == self.request.num_prompt_tokens else (),
            scoring=self._scoring(end),
            wants_importance=wants_window(self.ticket),
        )

    def take(self, part: SequenceSlice, result: StepResult) -> None:
        """A slice is computed: its tokens are cached, and what was found of the prompt is kept."""
        self.num_cached = part.end
        self.scores.extend(result.prompt_logprobs.get(part.request_id, ()))
        if (found := result.importance.get(part.request_id)) is not None:
            self.importance = after_slice(self.importance, part, found, self.num_cached_at_start)

    def first_token(self, choice: int, token_id: int, logprobs: TokenLogprobs | None) -> GeneratedToken:
        """The first token of a choice, with its verdict."""
        finish = self.request.stop.verdict(token_id, num_generated=1)
        return GeneratedToken(self.request.request_id, 0, token_id, logprobs, finish, choice)

    def prompt_logprobs(self) -> PromptLogprobs | None:
        """What was collected, if it was asked for."""
        return tuple(self.scores) if self.request.num_prompt_logprobs is not None else None

    def answer_with(self, first_tokens: tuple[GeneratedToken, ...]) -> None:
        """The prompt is read: whoever waits is told."""
        if self.answer.set_running_or_notify_cancel():
            done = PrefillAnswer(first_tokens, self.num_cached_at_start, self.prompt_logprobs())
            self.answer.set_result(done)

    def release(self) -> None:
        """Gives the blocks back, if there are any."""
        if self.table is not None:
            self.table.release()
            self.table = None

    def _draws(self) -> tuple[Draw, ...]:
        request = self.request
        return tuple(
            Draw(
                sampling=request.sampling_of(choice),
                tokens=request.prompt_token_ids,
                num_prompt=request.num_prompt_tokens - request.num_continued,
                choice=choice,
                forbidden=request.stop.forbidden(num_generated=0),
            )
            for choice in self.choices
        )

    def _scoring(self, end: int) -> PromptScoring | None:
        targets = self.request.prompt_token_ids[self.num_cached + 1 : end + 1]
        if self.request.num_prompt_logprobs is None or not targets:
            return None  # a prompt's last token alone has nothing to be scored
        return PromptScoring(targets, self.request.num_prompt_logprobs)
