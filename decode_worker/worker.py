"""The decode worker: admits, lands, decodes in one continuous batch, and reads prompts itself when nobody else can.

One thread calls `tick`; requests come in from any other through `reserve`, `decode`, `generate` and `cancel`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from decode_worker.admission import Admission
from decode_worker.arrival import Arrival
from decode_worker.config import DecodeConfig
from decode_worker.expected_output import ExpectedOutput
from decode_worker.line import Line
from decode_worker.outlet import Outlets, PromptRead
from decode_worker.pacing import Pacing
from decode_worker.preemption import Preempting
from decode_worker.prefixes import PrefixReuse
from decode_worker.roster import Roster
from decode_worker.sequence import DecodeSequence, Reservation
from decode_worker.swapping import Swapping
from engine.batch import SampledToken, SequenceSlice, StepBatch, StepResult
from engine.block_pool import BlockPool
from engine.engine import Engine
from engine.prefix_cache.news import PrefixNews
from protocol.drain import Drain
from protocol.errors import BadRequest, DeadlineExceeded, KvferryError, KvOverdue, Overloaded, WorkerUnavailable
from protocol.ids import WorkerId
from protocol.phase import Phase
from protocol.request import GeneratedToken, GenerateRequest
from protocol.ticket import Ticket
from scheduling.budget import plan_step
from scheduling.policies.choose import make_policy
from transfer.commands import CommandQueue
from transfer.landing import Receiver
from transfer.landing_contract import LandingRequest

log = logging.getLogger(__name__)

Clock = Callable[[], float]


class DecodeWorker:
    """Generates with `engine` from KV that `receiver` lands."""

    def __init__(
        self,
        identity: WorkerId,
        engine: Engine,
        receiver: Receiver,
        config: DecodeConfig,
        clock: Clock = time.monotonic,
    ) -> None:
        self.identity = identity
        self.engine = engine
        self.pool = BlockPool(engine.num_blocks)
        self.receiver = receiver
        self.config = config
        self.outlets = Outlets()
        self._policy = make_policy(config.policy)
        self.roster = Roster(receiver, self.outlets, Line(self._policy))
        self.pacing = Pacing(config)
        self.swapping = Swapping(engine.cache, config.swap_bytes, self.pacing, clock)
        self.preempting = Preempting(self.roster, self.swapping)
        self.reuse = PrefixReuse(self.pool, engine.layout, receiver, config)
        self.prefixes = self.reuse.cache
        self.news = PrefixNews(self.prefixes) if self.prefixes is not None else None
        self.admission = Admission(engine, self.reuse, receiver, self.roster, self.swapping, config)
        self.expected_output = ExpectedOutput(engine.layout.model_fingerprint)
        self.num_steps = 0
        self.num_local_prefill_tokens = 0
        self.draining = Drain(identity)
        self._clock = clock
        self._inbox = CommandQueue()
        self._num_arrived = 0
        receiver.on_ended = self.bell.set

    @property
    def bell(self) -> threading.Event:
        """Rung when there is something to do."""
        return self._inbox.bell

    @property
    def sequences(self) -> dict[str, DecodeSequence]:
        """What is here, by the ids of sequences: a request's own until it is forked."""
        return self.roster.sequences

    @property
    def num_preemptions(self) -> int:
        """Sequences that have lost their blocks."""
        return self.preempting.num_preemptions

    @property
    def num_swaps(self) -> int:
        """Those of them whose KV was kept in host memory."""
        return self.swapping.num_swaps

    def reserve(
        self, request: GenerateRequest, prefill_worker: WorkerId, router_id: str, deadline_s: float
    ) -> Future[Ticket]:
        """Asks for blocks and landing slots for a prompt that `prefill_worker` will read. The future waits its turn."""
        reservation = Reservation(prefill_worker)
        names = self.reuse.names_of(request, prefill_worker)
        arrival = Arrival(request, router_id, deadline_s, names, reservation)
        arrived = self._inbox.submit(lambda: self._enqueue(arrival))
        arrived.add_done_callback(reservation.fail_with)
        return reservation.ticket

    def generate(self, request: GenerateRequest, router_id: str, deadline_s: float) -> Future[None]:
        """Queues a request whose prompt is read here; its tokens go to the router's outlet."""
        arrival = Arrival(request, router_id, deadline_s, self.reuse.names_of(request))
        return self._inbox.submit(lambda: self._enqueue(arrival))

    def decode(self, request_id: str, generation: int, first_tokens: Sequence[GeneratedToken]) -> Future[None]:
        """Tells the first tokens of the choices that go on, which the client has already; the rest follows once the KV is
        here. Tokens from index 1 on go to the router's outlet. In the future: `StaleTicket` when the ticket is not this
        request's, `BadRequest` for tokens that cannot be first ones.
        """
        return self._inbox.submit(
            lambda: self.admission.take_first_tokens(request_id, generation, first_tokens, self._clock())
        )

    def cancel(self, request_id: str, choice: int | None = None) -> Future[bool]:
        """Ends a request, or one of its choices, wherever it stands, without a word to its outlet; true if it was known.
        With its last choice a request ends.
        """
        return self._inbox.submit(lambda: self.roster.cancel(request_id, choice, self._clock()))

    def cancel_router(self, router_id: str) -> Future[None]:
        """Ends all requests of a router that is gone."""
        return self._inbox.submit(lambda: self._cancel_router(router_id))

    def drain(self, timeout_s: float, restart: bool) -> None:
        """Refuses what is new as `Draining`; what is here goes on, tickets that were granted too, for `timeout_s` at most: then
        it fails, so that routers go on with it elsewhere. Raises `BadRequest`.
        """
        self.draining.begin(self._clock(), timeout_s, restart)
        self.bell.set()

    def reserve_link_test(self, test: LandingRequest) -> Ticket:
        """Grants a ticket whose chunks are verified and unpacked nowhere. Raises `OutOfSlots`, `Draining`."""
        self.draining.check()
        return self.receiver.reserve(test, self._clock())

    @property
    def num_waiting_tokens(self) -> int:
        """Tokens without KV that are to be computed here; those that wait for a landing are not among them."""
        return sum(
            len(one.tokens) - one.num_cached
            for one in list(self.sequences.values())
            if one.record.phase in (Phase.PREFILLING, Phase.PREEMPTED)
            or (one.record.phase is Phase.WAITING and not one.wants_ticket)
        )

    def tick(self, now: float) -> bool:
        """One turn of the main loop; false when there was nothing to compute."""
        num_commands = self._inbox.run_due()
        self.expire(now)
        self.admission.settle_landings(now)
        self.admission.admit(now)
        batch = self.next_batch(now)
        if batch is not None:
            self.settle(batch, self.step(batch, now), now)
        self.outlets.publish()
        if self.news is not None:
            self.news.publish()
        self.draining.look(is_idle=not (self.sequences or self.admission.num_landings))
        return batch is not None or num_commands > 0

    def expire(self, now: float) -> None:
        """Ends what is past its deadline, and gives up KV that is overdue: it is computed here instead."""
        for sequence in self.roster.past_deadline(now):
            late = DeadlineExceeded("the request was not finished before its deadline")
            self.roster.fail(sequence.request.request_id, late, now)
        if (overdue := self.draining.overdue(now)) is not None:
            for request_id in {one.request.request_id for one in self.sequences.values()}:
                self.roster.fail(request_id, overdue, now)
        for sequence in [*self.roster.running.values()]:
            if sequence.kv_due_at is not None and now > sequence.kv_due_at:
                self._look_for_kv(sequence, now)

    def next_batch(self, now: float) -> StepBatch | None:
        """Decodes first, oldest first, each with a block for its next token; then local prefill chunks."""
        decoding, prefilling = self.preempting.decoding(now), self.roster.in_phase(Phase.PREFILLING)
        self.reuse.look_again(prefilling)
        queue, limits = self.roster.line.queue(prefilling, now), self.pacing.limits(decoding, prefilling)
        grants = plan_step([one.sequence_id for one in decoding], queue, limits, self._policy)
        slices = tuple(self.sequences[grant.request_id].slice_of(grant.num_tokens) for grant in grants)
        return StepBatch(slices) if slices else None

    def step(self, batch: StepBatch, now: float) -> StepResult | None:
        """Runs the engine. A failure ends the requests of the batch and nothing else."""
        self.num_steps += 1
        start = self._clock()
        try:
            result = self.engine.step(batch)
        except Exception as error:
            log.exception("a decode step failed")
            failure = error if isinstance(error, KvferryError) else KvferryError(f"the decode step failed: {error}")
            for request_id in {self.sequences[part.request_id].request.request_id for part in batch.slices}:
                self.roster.fail(request_id, failure, now)
            return None
        self.pacing.learn(batch, self._clock() - start)
        return result

    def settle(self, batch: StepBatch, result: StepResult | None, now: float) -> None:
        """Books what was computed, appends what was drawn, and ends what is finished."""
        if result is None:
            return
        drawn = iter(result.tokens)
        for part in batch.slices:
            sequence = self.sequences[part.request_id]
            sequence.num_cached = part.end
            self.reuse.computed(sequence, part)
            if sequence.record.phase is Phase.PREFILLING:
                self.num_local_prefill_tokens += part.num_tokens
            if sequence.scores is not None:
                sequence.scores.extend(result.prompt_logprobs.get(part.request_id, ()))
            for one in () if part.request_id in result.failures else self._drawn_for(sequence, part, now):
                self._append(one, next(drawn), now)
        for sequence_id, error in result.failures.items():
            # Another choice may have failed the request already.
            if (failed := self.sequences.get(sequence_id)) is not None:
                self.roster.fail(failed.request.request_id, error, now)

    def check_idle(self) -> None:
        """Raises `RuntimeError` unless nothing is held: for tests, once all requests have ended."""
        if self.sequences or self.admission.num_landings:
            raise RuntimeError(f"not idle: {len(self.sequences)} requests, {self.admission.num_landings} landings")
        if self.roster.running or self.roster.line or self.swapping.num_blocks_held:
            raise RuntimeError(f"{self.swapping.num_blocks_held} blocks are swapped, {len(self.roster.line)} wait")
        self.reuse.check_integrity()
        self.receiver.slots.check_integrity()
        if self.pool.num_free != self.pool.num_blocks or self.receiver.slots.num_free != self.receiver.slots.num_slots:
            raise RuntimeError(f"{self.pool.num_free} blocks and {self.receiver.slots.num_free} slots are free")

    def _drawn_for(self, sequence: DecodeSequence, part: SequenceSlice, now: float) -> list[DecodeSequence]:
        """The sequences that get a token each, in the order of the draws: all choices of a prompt that is through."""
        if not part.draws:
            return []
        if not sequence.num_generated:
            num_found = sequence.names.computed_from or 0
            scores = None if sequence.scores is None else tuple(sequence.scores)
            sequence.scores = None
            self.outlets.add_prompt(sequence.router_id, PromptRead(sequence.request.request_id, num_found, scores))
        if sequence.record.phase is Phase.PREFILLING:
            sequence.move(now, Phase.DECODING)
        return self.admission.fork(sequence)

    def _append(self, sequence: DecodeSequence, drawn: SampledToken, now: float) -> None:
        sequence.tokens.append(drawn.token_id)
        request, index = sequence.request, sequence.num_generated - 1
        finish = request.stop.verdict(drawn.token_id, sequence.num_generated)
        token = GeneratedToken(request.request_id, index, drawn.token_id, drawn.logprobs, finish, sequence.choice)
        self.outlets.add_token(sequence.router_id, token)
        if finish is not None:
            self.expected_output.learn(sequence)
            self.roster.end(sequence, Phase.FINISHED, now)

    def _look_for_kv(self, sequence: DecodeSequence, now: float) -> None:
        """KV that still lands, however slowly, is waited for; what nothing was heard of for so long is given up."""
        generation = sequence.landing_generation
        landed_at = self.receiver.last_landed_at(generation) if generation is not None else None
        if generation is None or landed_at is None:
            return  # it has ended, and is settled next
        if now <= landed_at + self.config.kv_wait_s:
            sequence.kv_due_at = landed_at + self.config.kv_wait_s
            return
        sequence.kv_due_at = None
        self.receiver.revoke(generation, KvOverdue(f"none of it has landed for {self.config.kv_wait_s:g} s"))

    def _enqueue(self, arrival: Arrival) -> None:
        request = arrival.request
        self.draining.check()
        if self.roster.of_request(request.request_id):
            raise BadRequest(f"request {request.request_id} is already here")
        if self.admission.num_waiting >= self.config.max_waiting:
            raise Overloaded(f"{self.admission.num_waiting} requests are waiting on {self.identity}")
        self.admission.check(request)
        sequence = arrival.sequence(self._num_arrived + 1, self._clock(), self.expected_output.predict(request))
        sequence.num_cached_at_start = self.reuse.num_found_tokens(sequence)
        self.roster.place(sequence)
        self._num_arrived += request.num_choices

    def _cancel_router(self, router_id: str) -> None:
        # Not `Cancelled`: no client asked for it, and a router that is still there may start again.
        error = WorkerUnavailable(f"the token stream from {self.identity} to router {router_id} has ended")
        for sequence in self.roster.of_router(router_id):
            self.roster.end(sequence, Phase.CANCELLED, self._clock(), error)
