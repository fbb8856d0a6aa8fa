"""The prefill worker: admits prompts, runs them chunk by chunk, answers with the first tokens, ships the KV meanwhile.

One thread calls `tick`; `submit` and `cancel` may be called from any other.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future

from engine.batch import SampledToken, StepBatch, StepResult
from engine.block_pool import BlockPool
from engine.engine import Engine
from engine.prefix_cache.news import PrefixNews
from prefill_worker.admission import Admission
from prefill_worker.checks import check_request, check_ticket
from prefill_worker.config import PrefillConfig
from prefill_worker.link_tests import LinkTests
from prefill_worker.offers import Offers
from prefill_worker.pacing import Pacing
from prefill_worker.prompt_blocks import PromptBlocks, prefixes_of
from prefill_worker.sequence import PrefillAnswer, PrefillSequence, Submission, fail_with, refused
from prefill_worker.step_cuts import StepCuts
from protocol.drain import Drain
from protocol.errors import BadRequest, Cancelled, DeadlineExceeded, KvferryError, Overloaded, StaleTicket
from protocol.ids import WorkerId
from protocol.pace import Pace, TransferPlan
from protocol.phase import Phase
from protocol.request import GenerateRequest
from protocol.ticket import Ticket, TicketKey
from scheduling.budget import StepLimits, plan_step
from scheduling.policies.choose import make_policy
from scheduling.policies.policy import Queue
from transfer.commands import CommandQueue
from transfer.failed_transfers import FailedTransfers
from transfer.progress import OnProgress
from transfer.shipping import Sender

log = logging.getLogger(__name__)

Clock = Callable[[], float]


class PrefillWorker:
    """Computes prompts with `engine` and hands their KV to `sender`."""

    def __init__(
        self, identity: WorkerId, engine: Engine, sender: Sender, config: PrefillConfig, clock: Clock = time.monotonic
    ) -> None:
        self.identity = identity
        self.engine = engine
        self.pool = BlockPool(engine.num_blocks)
        self.prefixes = prefixes_of(self.pool, engine.layout, config.prefix_cache)
        self.news = PrefixNews(self.prefixes) if self.prefixes is not None else None
        self.sender = sender
        self.config = config
        self.num_steps = 0
        self.num_prefilled_tokens = 0
        self.num_transfers = 0
        self.failed_transfers = FailedTransfers()
        self.num_transfer_bytes = 0
        self.draining = Drain(identity)
        self._clock = clock
        self._inbox = CommandQueue()
        self._limits = StepLimits(config.max_step_tokens, config.max_sequences)
        self._cuts = StepCuts(engine.layout, config.max_step_tokens)
        self._policy = make_policy(config.policy)
        self._blocks = PromptBlocks(self.pool, engine.layout, self.prefixes)
        self._admission = Admission(self._policy, self._blocks, self.pool)
        self._offers = Offers(sender, config.push)
        self._running: dict[str, PrefillSequence] = {}
        self._shipping: dict[TicketKey, PrefillSequence] = {}
        self._link_tests = LinkTests(sender, self._inbox, self._check_ticket, clock)
        self._pacing = Pacing(sender, self._inbox, self._known)
        sender.on_ended = self.bell.set

    @property
    def bell(self) -> threading.Event:
        """Rung when there is something to do."""
        return self._inbox.bell

    @property
    def num_waiting(self) -> int:
        """Prompts that have no blocks yet."""
        return len(self._admission.waiting)

    @property
    def num_running(self) -> int:
        """Prompts being computed or shipped."""
        # A copy: other threads ask.
        return len(self._running) + sum(one.record.phase is Phase.SHIPPING for one in [*self._shipping.values()])

    @property
    def num_waiting_tokens(self) -> int:
        """Prompt tokens that are still to be computed, waiting or running, less those that the prefix cache would give."""
        return sum(one.work.num_uncached for one in (*self._admission.waiting.values(), *self._running.values()))

    def submit(
        self,
        request: GenerateRequest,
        ticket: Ticket | None,
        deadline_s: float,
        plan: TransferPlan | None = None,
        on_progress: OnProgress | None = None,
    ) -> Future[PrefillAnswer]:
        """Queues a prompt; without a ticket nothing is shipped. The future holds the first tokens or the error. With a plan
        the transfer keeps to its pace, and `on_progress` is told of it, on the thread that ships.
        """
        try:
            chain = self._blocks.chain_of(request)  # on this thread: no step has to wait for it
        except BadRequest as error:
            return refused(error)
        prompt = Submission(request, ticket, deadline_s, plan, on_progress, chain)
        arrived = self._inbox.submit(lambda: self._enqueue(prompt))
        arrived.add_done_callback(lambda done: fail_with(prompt.answer, done))
        return prompt.answer

    def set_pace(self, request_id: str, pace: Pace) -> None:
        """Another pace for a planned transfer; one that is not known, or has ended, is ignored.

        A sender that ships it hears at once, in the midst of a step; through the queue it is said again, behind a `submit`
        that is still waiting there.
        """
        self._pacing.set(request_id, pace, self._clock())

    def cancel(self, request_id: str, choice: int | None = None) -> Future[bool]:
        """Ends a request, or one of its choices, wherever it stands; true if it was known. With its last choice a request
        ends. Its blocks are free once its transfer is quiet.
        """
        return self._inbox.submit(lambda: self._cancel(request_id, choice))

    def drain(self, timeout_s: float, restart: bool) -> None:
        """Refuses what is new as `Draining`; what is here goes on, for `timeout_s` at most. Raises `BadRequest`."""
        self.draining.begin(self._clock(), timeout_s, restart)
        self.bell.set()

    def test_link(self, ticket: Ticket) -> Future[None]:
        """Ships zeros under a link test's ticket; done when the last chunk has been taken. Raises `Draining`."""
        self.draining.check()
        return self._link_tests.ask(ticket)

    def tick(self, now: float) -> bool:
        """One turn of the main loop; false when there was nothing to compute."""
        num_commands = self._inbox.run_due()
        self.settle_shipments(now)
        self.admit(now)
        batch = self.next_batch(now)
        if batch is not None:
            self.settle(batch, self.step(batch), now)
        if self.news is not None:
            self.news.publish()
        self.draining.look(is_idle=not self._known())
        return batch is not None or num_commands > 0

    def admit(self, now: float) -> None:
        """Gives blocks for their whole prompt to waiting requests, in order, while there is room."""
        for sequence in [
            one for one in (*self._admission.waiting.values(), *self._running.values()) if now > one.expires_at
        ]:
            self._end(sequence, DeadlineExceeded("the prompt was not computed before its deadline"), Phase.FAILED)
        if (overdue := self.draining.overdue(now)) is not None:
            for sequence in self._known():
                if not sequence.record.is_terminal:  # one that is read and shipped is known twice
                    self._end(sequence, overdue, Phase.FAILED)
        for sequence in self._admission.admit(self._queue(now), self.config.max_sequences - len(self._running)):
            self._running[sequence.request.request_id] = sequence
            sequence.move(now, Phase.PREFILLING)
            self._offers.cached(sequence)

    def next_batch(self, now: float) -> StepBatch | None:
        """Chunks of the running prompts, within the token budget, but for what another has computed since."""
        for sequence in self._running.values():
            if self._blocks.look_again(sequence):
                self._offers.cached(sequence)
        grants = plan_step([], self._queue(now), self._limits, self._policy)
        slices = tuple(self._running[grant.request_id].slice_of(grant.num_tokens) for grant in grants)
        return StepBatch(slices) if slices else None

    def step(self, batch: StepBatch) -> StepResult | None:
        """Runs the engine. A failure ends the requests of the batch and nothing else."""
        self.num_steps += 1
        started_at = self._clock()
        try:
            result = self.engine.step(batch)
            self._cuts.learn(batch, self._clock() - started_at)
            return result
        except Exception as error:
            log.exception("a prefill step failed")
            failure = error if isinstance(error, KvferryError) else KvferryError(f"the prefill step failed: {error}")
            for part in batch.slices:
                self._end(self._running[part.request_id], failure, Phase.FAILED)
            return None

    def settle(self, batch: StepBatch, result: StepResult | None, now: float) -> None:
        """Offers what was computed to the sender and answers the prompts that are through."""
        if result is None:
            return
        drawn = iter(result.tokens)
        for part in batch.slices:
            sequence = self._running[part.request_id]
            sequence.take(part, result)
            self._blocks.keep(sequence, part)  # before the answer: whoever hears it and asks again finds them
            self.num_prefilled_tokens += part.num_tokens
            if (failure := result.failures.get(part.request_id)) is not None:
                self._end(sequence, failure, Phase.FAILED)
                continue
            self._offers.computed(sequence, part)
            if part.draws:
                del self._running[part.request_id]
                self._answer(sequence, [next(drawn) for _ in part.draws], now)

    def settle_shipments(self, now: float) -> None:
        """Frees the blocks of prompts whose transfer has ended."""
        for ended in self.sender.take_ended():
            if self._link_tests.settle(ended):
                continue
            sequence = self._shipping.pop(ended.ticket.key)  # there: `_check` lets no ticket be taken on twice
            self.num_transfers += 1
            self.num_transfer_bytes += ended.num_bytes
            if ended.error is not None and not isinstance(ended.error, Cancelled) and not sequence.record.is_terminal:
                self.failed_transfers.add(ended.ticket.request_id, ended.error)
            sequence.shipped(now)

    def check_idle(self) -> None:
        """Raises `RuntimeError` unless nothing is held: for tests, once all requests have ended."""
        if self._known():
            raise RuntimeError(f"not idle: {self.num_waiting}, {len(self._running)}, {len(self._shipping)}")
        self._blocks.check_integrity()
        self.sender.slots.check_integrity()
        if self.pool.num_free != self.pool.num_blocks or self.sender.slots.num_free != self.sender.slots.num_slots:
            raise RuntimeError(f"{self.pool.num_free} blocks and {self.sender.slots.num_free} slots are free")

    def _queue(self, now: float) -> Queue:
        return Queue(self._admission.line, [self._cuts.work_of(one) for one in self._running.values()], now)

    def _enqueue(self, prompt: Submission) -> None:
        now, ticket = self._clock(), prompt.ticket
        # A ticket that is not taken on costs nothing: the decode worker's REVOKE will be answered CLOSED at once.
        self._check(prompt.request, ticket)
        sequence = self._admission.add(prompt, now)
        if ticket is not None:
            # Kept alive from here on, however long the queue is.
            self._shipping[ticket.key] = sequence
            self.sender.open(ticket, now, prompt.plan, prompt.on_progress)

    def _check(self, request: GenerateRequest, ticket: Ticket | None) -> None:
        self.draining.check()
        if self.num_waiting >= self.config.max_waiting:
            raise Overloaded(f"{self.num_waiting} prompts are waiting on {self.identity}")
        if any(one.request.request_id == request.request_id and not one.record.is_terminal for one in self._known()):
            raise BadRequest(f"request {request.request_id} is already here")
        check_request(request, ticket, self.engine, self.identity)
        if ticket is not None:
            self._check_ticket(ticket)

    def _check_ticket(self, ticket: Ticket) -> None:
        check_ticket(ticket, self.identity)
        if ticket.key in self._shipping or ticket in self._link_tests:
            raise StaleTicket(f"ticket {ticket.generation} of {ticket.decode_worker} is in use")

    def _known(self) -> list[PrefillSequence]:
        return [*self._admission.waiting.values(), *self._running.values(), *self._shipping.values()]

    def _answer(self, sequence: PrefillSequence, tokens: list[SampledToken], now: float) -> None:
        first_tokens = tuple(sequence.first_token(one.choice, one.token_id, one.logprobs) for one in tokens)
        sequence.choices = [one.choice for one in first_tokens if one.finish is None]
        if sequence.ticket is None:
            sequence.move(now, Phase.FINISHED)
            sequence.release()
        else:
            sequence.move(now, Phase.SHIPPING)
            if not sequence.choices:
                self.sender.abort(sequence.ticket, Cancelled("every answer ended with its first token"))
        sequence.answer_with(first_tokens)

    def _cancel(self, request_id: str, choice: int | None) -> bool:
        known = [one for one in self._known() if one.request.request_id == request_id and not one.record.is_terminal]
        if not known:
            return False
        sequence = known[0]
        if choice is not None and not sequence.drop_choice(choice):
            return False
        if choice is None or not sequence.choices:
            self._end(sequence, Cancelled("the request was cancelled"), Phase.CANCELLED)
        return True

    def _end(self, sequence: PrefillSequence, error: KvferryError, phase: Phase) -> None:
        """Stops computing at once; blocks go when the transfer, if any, has let go of them."""
        self._admission.remove(sequence.request.request_id)
        self._running.pop(sequence.request.request_id, None)
        sequence.move(self._clock(), phase)
        sequence.fail(error)
        if sequence.ticket is None:
            sequence.release()
        else:
            self.sender.abort(sequence.ticket, error)
