"""Who gets blocks on a decode worker, the landings that own some of them meanwhile, and who goes on from a landing.

A landing owns its block tables from the granted ticket until the receiver says that it has ended; only then do the blocks
pass to the sequence, or back to the pool if nobody wants them any more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decode_worker.config import DecodeConfig
from decode_worker.forking import check_first_tokens, fork, num_blocks_to_start, release_all
from decode_worker.prefixes import PrefixReuse
from decode_worker.roster import Roster
from decode_worker.sequence import DecodeSequence
from decode_worker.slot_wait import SlotWait
from decode_worker.swapping import Swapping
from engine.block_pool import BlockTable
from engine.engine import Engine
from protocol.errors import BadRequest, KvferryError, OutOfSlots, PromptTooLong, StaleTicket
from protocol.ids import wire_id
from protocol.phase import Phase
from protocol.request import GeneratedToken, GenerateRequest
from protocol.wire_rule import WireOffer
from scheduling.admission import blocks_ahead, blocks_kept, has_headroom
from transfer.codec.budget import sixteen_bit_bytes
from transfer.failed_transfers import FailedTransfers
from transfer.landing import Receiver
from transfer.landing_contract import LandingEnded, LandingRequest


@dataclass(slots=True)
class _Landing:
    sequence: DecodeSequence
    tables: list[BlockTable]


class Admission:
    """Blocks for resumed requests first, then for local prompts and reservations in the order of the policy."""

    def __init__(
        self,
        engine: Engine,
        reuse: PrefixReuse,
        receiver: Receiver,
        roster: Roster,
        swapping: Swapping,
        config: DecodeConfig,
    ) -> None:
        self.num_transfers = 0
        self.failed_transfers = FailedTransfers()
        self.num_transfer_bytes = 0
        self.num_landed_wire_bytes = 0
        self.num_landed_half_bytes = 0
        self.num_remote_prefill_tokens = 0
        self._engine = engine
        self._pool = reuse.pool
        self._reuse = reuse
        self._receiver = receiver
        self._roster = roster
        self._swapping = swapping
        self._sequences = roster.sequences
        self._config = config
        self._offer = WireOffer(receiver.config.rule, config.min_wire_budget)
        self._landings: dict[int, _Landing] = {}
        self._slot_wait = SlotWait(config.kv_wait_s)

    @property
    def num_landings(self) -> int:
        """Transfers that own blocks."""
        return len(self._landings)

    @property
    def num_waiting(self) -> int:
        """Requests, and answers that were preempted, that hold no blocks."""
        return len(self._roster.line)

    @property
    def num_running(self) -> int:
        """Answers that hold blocks."""
        running = [*self._roster.running.values()]  # a copy: other threads ask
        return sum(len(one.choices) for one in running if one.has_blocks)

    def check(self, request: GenerateRequest) -> None:
        """Raises `BadRequest`, or `PromptTooLong` when prompt and one answer could not be held even alone."""
        wire_id(request.request_id)
        self._engine.check_tokens(request.prompt_token_ids)
        self._engine.check_sampling(request.sampling)
        self._offer.rule_for(request.kv_wire_budget)
        limit = self._engine.max_tokens_per_sequence
        if request.max_total_tokens > limit:
            raise PromptTooLong(
                f"{request.num_prompt_tokens} prompt tokens and {request.stop.max_tokens} new ones make "
                f"{request.max_total_tokens}; this server holds {limit} a request"
            )
        if request.num_choices > self._config.max_sequences:
            raise BadRequest(
                f"{request.num_choices} answers are asked for; this server generates {self._config.max_sequences} at a time",
                param="n",
            )
        num_needed = self._num_blocks_to_start(request.num_prompt_tokens, request.num_choices)
        if num_needed > self._pool.num_blocks:
            raise BadRequest(
                f"{request.num_choices} answers to {request.num_prompt_tokens} prompt tokens need {num_needed} blocks of KV, "
                f"and there are {self._pool.num_blocks}: ask for fewer answers",
                param="n",
            )

    def admit(self, now: float) -> None:
        """Gives blocks away as far as they go. Nobody overtakes a request that has to wait for blocks; one that waits for
        landing slots is overtaken by those that need none, and refused when nobody has been given any for too long.
        """
        max_running = self._config.max_sequences
        if self._receiver.slots.num_free:
            self._slot_wait.end()
        if not self._roster.line:
            return
        if (num_running := self.num_running) >= max_running:
            return
        num_kept = self._num_kept([one for one in self._roster.running.values() if one.has_blocks])
        if num_running and not has_headroom(1, self._pool.num_free, num_kept):
            return  # nobody needs less
        is_out_of_slots = False
        for sequence_id in self._roster.line.order(self._roster.in_phase(Phase.PREFILLING), now):
            sequence = self._sequences[sequence_id]
            if is_out_of_slots and sequence.wants_ticket:
                self._wait_for_slots(sequence, now)
                continue
            num_answers, num_free = len(sequence.choices), self._pool.num_free
            # Alone, a request needs no headroom: `check` has seen to it that it can be held.
            if num_running == 0 and not self._landings:
                is_room = self._num_blocks_to_start(len(sequence.tokens), num_answers) <= num_free
            else:
                is_room = has_headroom(self._num_blocks_wanted(sequence), num_free, num_kept)
            if num_running + num_answers > max_running or not is_room:
                return
            if not self._start(sequence, now):
                is_out_of_slots = True
                self._wait_for_slots(sequence, now)
            elif sequence.has_blocks:
                num_running, num_kept = num_running + num_answers, num_kept + self._num_kept([sequence])

    def settle_landings(self, now: float) -> None:
        """Passes the blocks of ended landings on."""
        for ended in self._receiver.take_ended():
            landing = self._landings.pop(ended.ticket.generation, None)
            if landing is None:
                continue  # a link test's
            sequence = landing.sequence
            self._count(ended, sequence)
            sequence.landing_generation = None
            if sequence.record.is_terminal or ended.error is not None:
                release_all(landing.tables)
            else:
                sequence.tables, sequence.num_cached = landing.tables, ended.ticket.num_tokens
                sequence.drop_spare_tables()
                self._reuse.keep(sequence)
            if not sequence.record.is_terminal:
                self._join_if_ready(sequence, now)

    def take_first_tokens(
        self, request_id: str, generation: int, first_tokens: Sequence[GeneratedToken], now: float
    ) -> None:
        """Notes what a prefill worker has drawn: the choices that it names go on, unless they were cancelled meanwhile.

        Raises `StaleTicket` when the request does not wait for it under this ticket, and `BadRequest` for tokens that
        cannot be its first ones.
        """
        sequence = self._sequences.get(request_id)
        if sequence is None or sequence.record.phase is not Phase.LANDING or sequence.first_tokens:
            raise StaleTicket(f"request {request_id} does not wait for first tokens here")
        if not self._is_ticket_of(sequence, generation):
            raise StaleTicket(f"ticket {generation} is not the one of request {request_id}")
        check_first_tokens(sequence.request, first_tokens)
        self._engine.check_tokens([one.token_id for one in first_tokens])
        told = {one.choice: one.token_id for one in first_tokens}
        going_on = {choice: told[choice] for choice in sequence.choices if choice in told}
        if not going_on:
            self._roster.end(sequence, Phase.CANCELLED, now)
            return
        for choice in [one for one in sequence.choices if one not in going_on]:
            sequence.drop_choice(choice)
        sequence.first_tokens = going_on
        sequence.kv_due_at = now + self._config.kv_wait_s
        self._join_if_ready(sequence, now)

    def fork(self, sequence: DecodeSequence) -> list[DecodeSequence]:
        """The sequence's choices as sequences of their own, itself for the first of them."""
        forked = fork(sequence, self._engine)
        for one in forked if len(forked) > 1 else ():
            self._roster.place(one)
        return forked

    def _join_if_ready(self, sequence: DecodeSequence, now: float) -> None:
        """Moves a request on whose first tokens are known and whose landing has ended: to decode, or to compute its KV."""
        if not sequence.first_tokens or sequence.landing_generation is not None:
            return
        sequence.kv_due_at = None
        sequence.reservation = None
        sequence.move(now, Phase.DECODING if sequence.tables else Phase.WAITING)
        for one in fork(sequence, self._engine):
            self._roster.place(one)

    def _is_ticket_of(self, sequence: DecodeSequence, generation: int) -> bool:
        """Whether the request was granted this ticket."""
        ticket = sequence.reservation.ticket if sequence.reservation else None
        return ticket is not None and ticket.done() and ticket.result().generation == generation

    def _num_blocks_to_start(self, num_tokens: int, num_choices: int) -> int:
        return num_blocks_to_start(num_tokens, num_choices, self._engine.layout.block_size)

    def _num_blocks_wanted(self, sequence: DecodeSequence) -> int:
        """Blocks to start with and for the reserved share of the output, less those that it finds and others hold too."""
        block_size, reserve = self._engine.layout.block_size, self._config.kv_reserve
        num_known = len(sequence.tokens)
        num_ahead = blocks_ahead(num_known, sequence.num_output_left, block_size, reserve)
        num_shared, num_partial = divmod(num_known, block_size)
        num_others = len(sequence.choices) * max(1, num_ahead + bool(num_partial))
        return num_shared - self._reuse.num_saved(sequence) + num_others

    def _num_kept(self, sequences: Sequence[DecodeSequence]) -> int:
        """Blocks that are kept free for sequences that hold some: at least the next one of each answer."""
        if self._config.kv_reserve <= 0.0:
            return sum(len(one.choices) for one in sequences)
        sizes = ((len(one.tokens), one.num_output_left, len(one.choices)) for one in sequences)
        return blocks_kept(sizes, self._engine.layout.block_size, self._config.kv_reserve)

    def _start(self, sequence: DecodeSequence, now: float) -> bool:
        """Takes the blocks; false when it has to wait for landing slots."""
        if sequence.wants_ticket and not self._receiver.slots.num_free:
            return False
        tables = self._reuse.take_tables(sequence)
        if not sequence.wants_ticket:
            self._reuse.begin(sequence, tables)
            self._go_on(sequence, now)
            return True
        try:
            self._grant(sequence, tables, now)
        except OutOfSlots:
            release_all(tables)
            return False
        except KvferryError as error:
            release_all(tables)
            self._roster.end(sequence, Phase.FAILED, now, error)
        return True

    def _wait_for_slots(self, sequence: DecodeSequence, now: float) -> None:
        if self._slot_wait.is_stuck(now):
            error = OutOfSlots(f"no landing slot has become free for {self._slot_wait.limit_s:g} s")
            self._roster.end(sequence, Phase.FAILED, now, error)

    def _go_on(self, sequence: DecodeSequence, now: float) -> None:
        """With its blocks: to read what has no KV, or to decode if all that was known has come back from where it was kept."""
        is_back = self._swapping.bring_back(sequence)
        is_decoding = is_back and sequence.num_generated > 0 and sequence.num_cached == len(sequence.tokens) - 1
        sequence.move(now, Phase.DECODING if is_decoding else Phase.PREFILLING)
        self._roster.place(sequence)

    def _grant(self, sequence: DecodeSequence, tables: list[BlockTable], now: float) -> None:
        reservation = sequence.reservation
        if reservation is None:
            raise RuntimeError(f"request {sequence.request.request_id} asked for no ticket")
        ticket = self._receiver.reserve(
            LandingRequest(
                request_id=sequence.request.request_id,
                prefill_worker=reservation.prefill_worker,
                first_token=sequence.names.num_kept * self._engine.layout.block_size,
                num_tokens=sequence.request.num_prompt_tokens,
                block_ids=tuple(tables[0].block_ids),
                rule=self._offer.rule_for(sequence.request.kv_wire_budget),
            ),
            now,
        )
        self._slot_wait.end()
        self._landings[ticket.generation] = _Landing(sequence, tables)
        sequence.landing_generation = ticket.generation
        sequence.move(now, Phase.LANDING)
        self._roster.place(sequence)
        if reservation.ticket.set_running_or_notify_cancel():
            reservation.ticket.set_result(ticket)
        else:
            self._roster.end(sequence, Phase.CANCELLED, now)  # nobody waits for the ticket any more

    def _count(self, ended: LandingEnded, sequence: DecodeSequence) -> None:
        self.num_transfers += 1
        self.num_transfer_bytes += ended.num_bytes
        if ended.error is None:
            num_tokens = ended.ticket.num_tokens - ended.ticket.first_token
            half_bytes = sixteen_bit_bytes(self._engine.layout, num_tokens)
            self.num_remote_prefill_tokens += num_tokens
            self.num_landed_wire_bytes += ended.num_bytes
            self.num_landed_half_bytes += half_bytes
            self._roster.tell_landing(sequence, ended.num_bytes, half_bytes)
        elif not sequence.record.is_terminal:
            self.failed_transfers.add(ended.ticket.request_id, ended.error)
            self._roster.tell_lost_kv(sequence, ended.error)
