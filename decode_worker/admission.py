"""Who gets blocks on a decode worker, and the landings that own some of them meanwhile.

A landing owns its block table from the granted ticket until the receiver says that it has ended; only then do the blocks
pass to the sequence, or back to the pool if nobody wants them any more.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from decode_worker.config import DecodeConfig
from decode_worker.sequence import DecodeSequence
from engine.block_pool import BlockPool, BlockTable
from engine.engine import Engine
from protocol.errors import Cancelled, KvferryError, OutOfSlots, PromptTooLong
from protocol.ids import wire_id
from protocol.phase import Phase
from protocol.request import GenerateRequest
from scheduling.admission import has_headroom
from transfer.landing import Receiver
from transfer.landing_contract import LandingEnded, LandingRequest

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Landing:
    sequence: DecodeSequence
    table: BlockTable


class Admission:
    """Blocks for resumed requests first, then for local prompts and reservations in the order of their arrival."""

    def __init__(
        self,
        engine: Engine,
        pool: BlockPool,
        receiver: Receiver,
        sequences: dict[str, DecodeSequence],
        config: DecodeConfig,
    ) -> None:
        self.num_transfers = 0
        self.num_transfer_failures = 0
        self.num_transfer_bytes = 0
        self.num_remote_prefill_tokens = 0
        self._engine = engine
        self._pool = pool
        self._receiver = receiver
        self._sequences = sequences
        self._config = config
        self._landings: dict[int, _Landing] = {}

    @property
    def num_landings(self) -> int:
        """Transfers that own blocks."""
        return len(self._landings)

    @property
    def num_waiting(self) -> int:
        """Requests that hold no blocks."""
        sequences = [*self._sequences.values()]  # a copy: other threads ask
        return sum(one.record.phase in (Phase.WAITING, Phase.PREEMPTED) for one in sequences)

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return sum(one.has_blocks for one in [*self._sequences.values()])

    def check(self, request: GenerateRequest) -> None:
        """Raises `BadRequest`, or `PromptTooLong` when prompt and answer could not be held even alone."""
        wire_id(request.request_id)
        self._engine.check_tokens(request.prompt_token_ids)
        limit = self._engine.max_tokens_per_sequence
        if request.max_total_tokens > limit:
            raise PromptTooLong(
                f"{request.num_prompt_tokens} prompt tokens and {request.stop.max_tokens} new ones make "
                f"{request.max_total_tokens}; this server holds {limit} a request"
            )

    def admit(self, now: float) -> None:
        """Gives blocks away as far as they go. Nobody overtakes a request that has to wait for blocks; one that waits for
        landing slots is overtaken by those that need none.
        """
        is_out_of_slots = False
        waiting = [one for one in self._sequences.values() if one.record.phase in (Phase.PREEMPTED, Phase.WAITING)]
        waiting.sort(key=lambda one: (one.record.phase is Phase.WAITING, one.arrival))
        for sequence in waiting:
            if is_out_of_slots and sequence.wants_ticket:
                continue
            num_needed = self._engine.layout.num_blocks_for(len(sequence.tokens) + 1)
            num_running = self.num_running
            is_room = has_headroom(num_needed, self._pool.num_free, num_running)
            # Alone, a request needs no headroom: `check` has seen to it that it can be held.
            is_room = is_room or (num_running == 0 and not self._landings and num_needed <= self._pool.num_free)
            if num_running >= self._config.max_sequences or not is_room:
                return
            is_out_of_slots |= not self._start(sequence, now)

    def settle_landings(self, now: float) -> None:
        """Passes the blocks of ended landings on."""
        for ended in self._receiver.take_ended():
            landing = self._landings.pop(ended.ticket.generation, None)
            if landing is None:
                continue  # a link test's
            self._count(ended)
            sequence = landing.sequence
            sequence.landing_generation = None
            if sequence.record.is_terminal or ended.error is not None:
                landing.table.release()
            else:
                sequence.table, sequence.num_cached = landing.table, ended.ticket.num_tokens
            if not sequence.record.is_terminal:
                self.join_if_ready(sequence, now)

    def join_if_ready(self, sequence: DecodeSequence, now: float) -> None:
        """Moves a request on whose first token is known and whose landing has ended: to decode, or to compute its KV."""
        if not sequence.has_first_token or sequence.landing_generation is not None:
            return
        sequence.kv_due_at = None
        sequence.move(now, Phase.DECODING if sequence.table is not None else Phase.WAITING)

    def is_ticket_of(self, sequence: DecodeSequence, generation: int) -> bool:
        """Whether the request was granted this ticket."""
        ticket = sequence.reservation.ticket if sequence.reservation else None
        return ticket is not None and ticket.done() and ticket.result().generation == generation

    def _start(self, sequence: DecodeSequence, now: float) -> bool:
        """Takes the blocks; false when it has to wait for landing slots."""
        table = BlockTable(self._pool, self._engine.layout.block_size)
        table.ensure(len(sequence.tokens) + 1)
        if not sequence.wants_ticket:
            sequence.table = table
            sequence.move(now, Phase.PREFILLING)
            return True
        try:
            self._grant(sequence, table, now)
        except OutOfSlots:
            table.release()
            return False
        except KvferryError as error:
            table.release()
            self._withdraw(sequence, error, Phase.FAILED, now)
        return True

    def _grant(self, sequence: DecodeSequence, table: BlockTable, now: float) -> None:
        reservation = sequence.reservation
        if reservation is None:
            raise RuntimeError(f"request {sequence.request.request_id} asked for no ticket")
        ticket = self._receiver.reserve(
            LandingRequest(
                request_id=sequence.request.request_id,
                prefill_worker=reservation.prefill_worker,
                first_token=0,
                num_tokens=sequence.request.num_prompt_tokens,
                block_ids=tuple(table.block_ids),
            ),
            now,
        )
        self._landings[ticket.generation] = _Landing(sequence, table)
        sequence.landing_generation = ticket.generation
        sequence.move(now, Phase.LANDING)
        if reservation.ticket.set_running_or_notify_cancel():
            reservation.ticket.set_result(ticket)
        else:
            self._withdraw(sequence, Cancelled("nobody waits for the ticket any more"), Phase.CANCELLED, now)
            self._receiver.revoke(ticket.generation)

    def _withdraw(self, sequence: DecodeSequence, error: KvferryError, phase: Phase, now: float) -> None:
        sequence.move(now, phase)
        del self._sequences[sequence.request.request_id]
        if sequence.reservation is not None:
            sequence.reservation.fail(error)

    def _count(self, ended: LandingEnded) -> None:
        self.num_transfers += 1
        self.num_transfer_bytes += ended.num_bytes
        if ended.error is None:
            self.num_remote_prefill_tokens += ended.ticket.num_tokens - ended.ticket.first_token
        else:
            self.num_transfer_failures += 1
            log.warning("request %s: its KV did not land: %s", ended.ticket.request_id, ended.error)
