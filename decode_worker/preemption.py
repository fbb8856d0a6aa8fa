"""Blocks for the next tokens of those that decode, at the cost of the least urgent when they run out.

Does not know who is admitted; what lost its blocks goes back into the line.
"""

from __future__ import annotations

from decode_worker.roster import Roster
from decode_worker.sequence import DecodeSequence
from decode_worker.swapping import Swapping
from protocol.errors import OutOfBlocks
from protocol.phase import Phase
from scheduling.admission import choose_victim


class Preempting:
    """Takes blocks from those that hold some and are not landing."""

    def __init__(self, roster: Roster, swapping: Swapping) -> None:
        self.num_preemptions = 0
        self._roster = roster
        self._swapping = swapping

    def decoding(self, now: float) -> list[DecodeSequence]:
        """Those that decode, oldest first, each with a block for its next token."""
        num_before = self.num_preemptions
        ready = [one for one in self._roster.in_phase(Phase.DECODING) if self._has_room(one, now)]
        if self.num_preemptions == num_before:
            return ready
        return [one for one in ready if one.record.phase is Phase.DECODING]  # room has cost others their own

    def _has_room(self, sequence: DecodeSequence, now: float) -> bool:
        """Makes sure of a block for the next token; false if that has cost the sequence its own."""
        if sequence.tables and sequence.tables[0].num_tokens_held > sequence.num_cached:
            return True  # as nearly always; a sequence that was preempted for another one holds none
        while sequence.record.phase is Phase.DECODING:
            try:
                sequence.held_table().ensure(sequence.num_cached + 1)
                return True
            except OutOfBlocks:
                holders = [*self._roster.in_phase(Phase.DECODING), *self._roster.in_phase(Phase.PREFILLING)]
                victim = choose_victim([one.work for one in holders])
                self._preempt(self._roster.sequences[victim.request_id] if victim else sequence, now)
        return False

    def _preempt(self, victim: DecodeSequence, now: float) -> None:
        if not self._swapping.set_aside(victim):
            victim.drop_blocks()
        victim.move(now, Phase.PREEMPTED)
        self._roster.place(victim)
        self.num_preemptions += 1
