"""One answer on a decode worker, or all those to one prompt until its KV is here: phase, tokens, blocks, landing."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from decode_worker.prefix_names import PrefixNames
from engine.batch import Draw, PromptScoring, SequenceSlice
from engine.block_pool import BlockTable
from engine.swap_space import SwappedKv
from protocol.ids import WorkerId
from protocol.phase import Phase, PhaseRecord
from protocol.request import GenerateRequest, SamplingParams, TokenLogprobs
from protocol.ticket import Ticket
from scheduling.work import Work


@dataclass(slots=True)
class Reservation:
    """A request for a ticket: who will write, and who waits for it."""

    prefill_worker: WorkerId
    ticket: Future[Ticket] = field(default_factory=Future)

    def fail(self, error: BaseException) -> None:
        """Tells whoever still waits for the ticket that there will be none."""
        if not self.ticket.done() and self.ticket.set_running_or_notify_cancel():
            self.ticket.set_exception(error)

    def fail_with(self, arrived: Future[None]) -> None:
        """The same if the request could not even begin to wait."""
        if (error := arrived.exception()) is not None:
            self.fail(error)


@dataclass(slots=True)
class DecodeSequence:
    """Stands for all `choices` of its request, with how each is drawn, until it is forked; for one of them from then on.

    `tokens` are the prompt and what has been generated; the KV of the first `num_cached` is in the cache. `tables` are the
    blocks, a table for each choice: the prompt is written into the first, with which the others share its full blocks.
    Between a granted ticket and the end of its landing (`landing_generation` is set meanwhile) the landing owns them.
    `arrival` is the first of as many numbers as the request has choices. `first_tokens` are those of a prefill worker, by
    choice, until the fork. `names` are those of its blocks in the prefix cache. `scores` are collected while the prompt is read
    here, if they are wanted and not sent yet.

    `arrival_s` is when it came; `num_predicted_output` what each answer is expected to have, 0 for not known;
    `num_cached_at_start` how much was found in the prefix cache when it started, or would have been when it came. While it is
    preempted, `swapped` may hold the KV of its first `num_cached` tokens.
    """

    sequence_id: str
    request: GenerateRequest
    router_id: str
    arrival: int
    expires_at: float
    record: PhaseRecord
    tokens: list[int]
    choices: dict[int, SamplingParams]
    reservation: Reservation | None = None
    tables: list[BlockTable] = field(default_factory=list)
    num_cached: int = 0
    landing_generation: int | None = None
    first_tokens: dict[int, int] = field(default_factory=dict)
    kv_due_at: float | None = None
    scores: list[TokenLogprobs] | None = None
    arrival_s: float = 0.0
    num_predicted_output: int = 0
    num_cached_at_start: int = 0
    swapped: SwappedKv | None = None
    names: PrefixNames = field(default_factory=PrefixNames)

    @property
    def choice(self) -> int:
        """The answer that a forked sequence is."""
        (choice,) = self.choices
        return choice

    @property
    def num_generated(self) -> int:
        """Tokens of the answer so far, the prefill worker's first one among them."""
        return len(self.tokens) - self.request.num_prompt_tokens

    @property
    def wants_ticket(self) -> bool:
        """Whether its prompt's KV is to come from a prefill worker that waits for a ticket."""
        return self.reservation is not None and not self.first_tokens

    @property
    def has_blocks(self) -> bool:
        """Whether blocks are taken for it, its own or its landing's."""
        return bool(self.tables) or self.landing_generation is not None

    @property
    def num_output_left(self) -> int:
        """Tokens that each answer is expected to have more: at least the next one."""
        num_left = self.num_predicted_output + len(self.request.prompt_token_ids) - len(self.tokens)
        return num_left if num_left > 1 else 1

    @property
    def is_resumed(self) -> bool:
        """Whether, holding no blocks, it goes before those that have never had any."""
        return self.num_generated > 0 or self.request.num_continued > 0 or self.record.phase is Phase.PREEMPTED

    @property
    def work(self) -> Work:
        """What the scheduler sees: what this worker has to do.

        Of a prompt whose KV is to land nothing is computed here. It counts as cached from the start, so that `spf` has such
        requests in the order of their arrival and before all prompts that are read here, and `sjf` and `srpt` order them by
        their predicted output alone. Where the prompt is read, on the prefill worker, its length counts. The output is that of
        all answers that the sequence stands for.
        """
        num_known, num_cached_at_start = len(self.tokens), self.num_cached_at_start
        num_cached = max(self.num_cached, num_cached_at_start)
        if self.wants_ticket:
            num_cached = num_cached_at_start = num_known
        return Work(
            request_id=self.sequence_id,
            num_known=num_known,
            num_cached=num_cached,
            arrival=self.arrival,
            arrival_s=self.arrival_s,
            priority=self.request.priority,
            num_generated=self.num_generated,
            num_predicted_output=self.num_predicted_output * len(self.choices),
            num_cached_at_start=num_cached_at_start,
            is_continued=self.request.num_continued > 0,
        )

    def move(self, now: float, to: Phase) -> None:
        """Advances the phase. Raises `IllegalMove`."""
        self.record = self.record.advance(now, to)

    def held_table(self) -> BlockTable:
        """The block table that is written to, which must be there."""
        if not self.tables:
            raise RuntimeError(f"sequence {self.sequence_id} has no blocks")
        return self.tables[0]

    def slice_of(self, num_tokens: int) -> SequenceSlice:
        """The next `num_tokens` tokens without KV; if they are the last known ones, a token is drawn for each choice."""
        end = self.num_cached + num_tokens
        return SequenceSlice(
            request_id=self.sequence_id,
            token_ids=self.tokens[self.num_cached : end],
            start=self.num_cached,
            block_ids=self.held_table().block_ids,
            draws=self._draws() if end == len(self.tokens) else (),
            scoring=self._scoring(end),
        )

    def drop_choice(self, choice: int) -> None:
        """Stands for one answer less. Its blocks go at once, or when their landing has ended."""
        del self.choices[choice]
        self.first_tokens.pop(choice, None)
        self.drop_spare_tables()

    def drop_spare_tables(self) -> None:
        """Gives back the tables of choices that are not wanted any more; the first goes last."""
        while len(self.tables) > len(self.choices):
            self.tables.pop().release()

    def release_tables(self) -> None:
        """Gives the blocks back, for KV that is kept elsewhere."""
        while self.tables:
            self.tables.pop().release()

    def drop_blocks(self) -> None:
        """Gives the blocks back, and KV that was swapped; all of it has to be computed again, and the prompt scored from its
        beginning.
        """
        self.release_tables()
        if self.swapped is not None:
            self.swapped.drop()
            self.swapped = None
        self.num_cached = self.num_cached_at_start = 0
        if self.scores is not None:
            self.scores = []

    def _draws(self) -> tuple[Draw, ...]:
        num_prompt = self.request.num_prompt_tokens - self.request.num_continued
        forbidden = self.request.stop.forbidden(self.num_generated)
        return tuple(
            Draw(sampling, self.tokens, num_prompt, choice, forbidden) for choice, sampling in self.choices.items()
        )

    def _scoring(self, end: int) -> PromptScoring | None:
        targets = self.request.prompt_token_ids[self.num_cached + 1 : end + 1]
        if self.scores is None or self.request.num_prompt_logprobs is None or not targets:
            return None  # a prompt's last token alone has nothing to be scored
        return PromptScoring(targets, self.request.num_prompt_logprobs)
