"""Who is on a decode worker, and how they leave: finished, failed, cancelled whole or one choice at a time.

A request's sequences are found by its id, forked or not. Blocks go at once, or with the landing that still owns them. Who
waits for blocks is in the line, everybody else is running.
"""

from __future__ import annotations

import math
from operator import attrgetter

from decode_worker.line import Line
from decode_worker.outlet import Landing, Outlets
from decode_worker.sequence import DecodeSequence
from protocol.errors import Cancelled, KvferryError
from protocol.phase import Phase
from transfer.landing import Receiver

_arrival_of = attrgetter("arrival")
_WITHOUT_BLOCKS = frozenset({Phase.WAITING, Phase.PREEMPTED})


class Roster:
    """The sequences, by their ids; what has landed and what ends with an error is told to its router through `outlets`."""

    def __init__(self, receiver: Receiver, outlets: Outlets, line: Line) -> None:
        self.sequences: dict[str, DecodeSequence] = {}
        self.line = line
        self.running: dict[str, DecodeSequence] = {}
        self._first_deadline = math.inf
        self._receiver = receiver
        self._outlets = outlets

    def place(self, sequence: DecodeSequence) -> None:
        """Puts a sequence, new or not, where its phase says: into the line, or among those that run."""
        sequence_id = sequence.sequence_id
        self.sequences[sequence_id] = sequence
        self._first_deadline = min(self._first_deadline, sequence.expires_at)
        if sequence.record.phase in _WITHOUT_BLOCKS:
            self.running.pop(sequence_id, None)
            self.line.put(sequence)
        else:
            self.line.take_out(sequence_id)
            self.running[sequence_id] = sequence

    def past_deadline(self, now: float) -> list[DecodeSequence]:
        """Those whose deadline has passed, told once. Looks at nobody before the first deadline that it has seen."""
        if now <= self._first_deadline:
            return []
        late = [one for one in self.sequences.values() if now > one.expires_at]
        to_come = (one.expires_at for one in self.sequences.values() if now <= one.expires_at)
        self._first_deadline = min(to_come, default=math.inf)
        return late

    def of_request(self, request_id: str) -> list[DecodeSequence]:
        """The sequences of a request, none if it is not here."""
        return [one for one in self.sequences.values() if one.request.request_id == request_id]

    def of_router(self, router_id: str) -> list[DecodeSequence]:
        """The sequences of all requests of a router."""
        return [one for one in self.sequences.values() if one.router_id == router_id]

    def in_phase(self, phase: Phase) -> list[DecodeSequence]:
        """The sequences in one of the phases after waiting, oldest first."""
        found = [one for one in self.running.values() if one.record.phase is phase]
        return sorted(found, key=_arrival_of)

    def cancel(self, request_id: str, choice: int | None, now: float) -> bool:
        """Ends a request, or one of its choices, without a word to its outlet; true if it was here."""
        error = Cancelled("the request was cancelled")
        known = [one for one in self.of_request(request_id) if choice is None or choice in one.choices]
        for sequence in known:
            if choice is not None and len(sequence.choices) > 1:
                sequence.drop_choice(choice)
                if sequence.sequence_id in self.line:
                    self.line.put(sequence)  # there is less to do of it
            else:
                self.end(sequence, Phase.CANCELLED, now, error)
        return bool(known)

    def fail(self, request_id: str, error: KvferryError, now: float) -> None:
        """Ends all choices of a request by an error, of which its router is told once."""
        sequences = self.of_request(request_id)
        if sequences:
            self._outlets.add_failure(sequences[0].router_id, request_id, error)
        for sequence in sequences:
            self.end(sequence, Phase.FAILED, now, error)

    def tell_landing(self, sequence: DecodeSequence, wire_bytes: int, half_bytes: int) -> None:
        """Tells a sequence's router that all its KV is here, in so many bytes; `half_bytes` it would have in 16 bits."""
        self._outlets.add_landing(sequence.router_id, Landing(sequence.request.request_id, wire_bytes, half_bytes))

    def tell_lost_kv(self, sequence: DecodeSequence, error: KvferryError) -> None:
        """Tells a sequence's router that its KV did not land: it goes on here all the same."""
        self._outlets.add_lost_kv(sequence.router_id, sequence.request.request_id, error)

    def end(self, sequence: DecodeSequence, phase: Phase, now: float, error: KvferryError | None = None) -> None:
        """Takes a sequence out. Its blocks go at once, or when its landing has let go of them."""
        sequence.move(now, phase)
        del self.sequences[sequence.sequence_id]
        self.running.pop(sequence.sequence_id, None)
        self.line.take_out(sequence.sequence_id)
        if sequence.reservation is not None and error is not None:
            sequence.reservation.fail(error)
        if sequence.landing_generation is not None:
            self._receiver.revoke(sequence.landing_generation)
        else:
            sequence.drop_blocks()
