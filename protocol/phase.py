"""The phases of a request on a worker, in one table. A move that is not in it raises and changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from protocol.errors import IllegalMove


class Phase(StrEnum):
    """Where a request stands on the worker that holds this record."""

    WAITING = "waiting"
    LANDING = "landing"
    PREFILLING = "prefilling"
    SHIPPING = "shipping"
    DECODING = "decoding"
    PREEMPTED = "preempted"
    FINISHED = "finished"
    CANCELLED = "cancelled"
    FAILED = "failed"


TERMINAL = frozenset({Phase.FINISHED, Phase.CANCELLED, Phase.FAILED})
_ANYWHERE = frozenset({Phase.CANCELLED, Phase.FAILED})

LEGAL_MOVES: dict[Phase, frozenset[Phase]] = {
    # A decode worker reserves before it waits for KV; prompts are computed straight from the queue.
    Phase.WAITING: frozenset({Phase.LANDING, Phase.PREFILLING}) | _ANYWHERE,
    # KV on its way in. If it does not arrive whole, the decode worker computes it (PREFILLING by way of WAITING).
    Phase.LANDING: frozenset({Phase.WAITING, Phase.DECODING, Phase.FINISHED}) | _ANYWHERE,
    Phase.PREFILLING: frozenset({Phase.SHIPPING, Phase.DECODING, Phase.PREEMPTED, Phase.FINISHED}) | _ANYWHERE,
    # The first token is out, the tail of the KV is still on the wire.
    Phase.SHIPPING: frozenset({Phase.FINISHED}) | _ANYWHERE,
    Phase.DECODING: frozenset({Phase.PREEMPTED, Phase.FINISHED}) | _ANYWHERE,
    # KV that was kept elsewhere meanwhile is only copied back.
    Phase.PREEMPTED: frozenset({Phase.PREFILLING, Phase.DECODING}) | _ANYWHERE,
    Phase.FINISHED: frozenset(),
    Phase.CANCELLED: frozenset(),
    Phase.FAILED: frozenset(),
}


@dataclass(frozen=True, slots=True)
class PhaseRecord:
    """A phase and the time (seconds, the caller's clock) at which it was entered."""

    phase: Phase
    since: float

    def advance(self, now: float, to: Phase) -> PhaseRecord:
        """The record after a legal move. Raises `IllegalMove` otherwise."""
        if to not in LEGAL_MOVES[self.phase]:
            raise IllegalMove(f"a request cannot move from {self.phase} to {to}")
        return replace(self, phase=to, since=now)

    @property
    def is_terminal(self) -> bool:
        """Whether nothing can follow."""
        return self.phase in TERMINAL
