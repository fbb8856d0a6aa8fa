"""The prefill worker's outbox: slots that chunks are packed into, the writes under way from them, how fast each link took them.

Knows nothing of tickets and credits. A slot stays lent until the transport says that its write is terminal.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from protocol.ids import WorkerId
from transfer.arena import Arena
from transfer.planner.link import LinkEstimate
from transfer.slots import SlotPool
from transfer.transport import Transport, Write, WriteRequest, WriteState

TransferKey: TypeAlias = tuple[str, int]
"""Decode worker and generation."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Whose write it is, and the landing slot of a peer that it goes to."""

    key: TransferKey
    peer: WorkerId
    slot: int


@dataclass(frozen=True, slots=True)
class _InFlight:
    write: Write
    owner: int
    key: TransferKey
    posted_at: float


class Outbox:
    """Belongs to the thread that pumps the transport."""

    def __init__(self, transport: Transport[Any], arena: Arena) -> None:
        self.slots = SlotPool(arena.num_slots)
        self.links: dict[WorkerId, LinkEstimate] = {}
        self._transport = transport
        self._arena = arena
        self._next_owner = 0
        self._in_flight: list[_InFlight] = []

    @property
    def busy_keys(self) -> set[TransferKey]:
        """Transfers that have a write in flight."""
        return {one.key for one in self._in_flight}

    def send(self, to: Destination, fill: Callable[[memoryview], tuple[int, bytes]]) -> int:
        """Lends a free slot, lets `fill` pack it, and writes it; its bytes. `fill` returns them and the tag that follows.

        Raises what `fill` or the transport raises, with the slot free again.
        """
        owner = self._next_owner
        self._next_owner += 1
        (local_slot,) = self.slots.lend(owner, 1)
        try:
            size, tag = fill(self._arena.slot(local_slot))
            posted_at = time.monotonic()
            write = self._transport.write(WriteRequest(to.peer, local_slot, to.slot, size, tag))
        except Exception:
            self.slots.free(owner)
            raise
        self._in_flight.append(_InFlight(write, owner, to.key, posted_at))
        return size

    def settle(self) -> tuple[int, list[TransferKey]]:
        """Frees the slots of terminal writes: how many there were, and whose failed."""
        still: list[_InFlight] = []
        failed: list[TransferKey] = []
        num_settled = 0
        for one in self._in_flight:
            state = self._transport.state(one.write)
            if state is WriteState.PENDING:
                still.append(one)
                continue
            num_settled += 1
            self.slots.free(one.owner)
            if state is WriteState.DONE:
                self._measure(one.write.request, time.monotonic() - one.posted_at)
            else:
                failed.append(one.key)
        self._in_flight = still
        return num_settled, failed

    def forget(self, peer: WorkerId) -> None:
        """What was learned of a link that is gone."""
        self.links.pop(peer, None)

    def _measure(self, request: WriteRequest, seconds: float) -> None:
        known = self.links.get(request.peer, LinkEstimate())
        self.links[request.peer] = known.sample(request.num_bytes, seconds)
