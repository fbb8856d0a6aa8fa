"""The prefill worker's outbox: slots that chunks are packed into, the writes under way from them, how fast each link took them.

Knows nothing of tickets and credits. A slot stays lent until the transport says that its write is terminal.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from protocol.ids import WorkerId
from transfer.arena import Arena
from transfer.planner.link import LinkEstimate, LinkMeter, WriteEnd
from transfer.slots import SlotPool
from transfer.transport import Transport, Write, WriteRequest, WriteState

TransferKey: TypeAlias = tuple[str, int]
"""Decode worker and generation."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Whose write it is, and the landing slot of a peer that it goes to; one that is paced says nothing of its link."""

    key: TransferKey
    peer: WorkerId
    slot: int
    is_paced: bool = False


@dataclass(frozen=True, slots=True)
class _InFlight:
    write: Write
    owner: int
    key: TransferKey


class Outbox:
    """Belongs to the thread that pumps the transport. `clock` is read when a chunk is packed: packing is no link's doing."""

    def __init__(self, transport: Transport[Any], arena: Arena, clock: Callable[[], float] = time.monotonic) -> None:
        self.slots = SlotPool(arena.num_slots)
        self.links: dict[WorkerId, LinkEstimate] = {}
        self._transport = transport
        self._arena = arena
        self._clock = clock
        self._next_owner = 0
        self._in_flight: list[_InFlight] = []
        self._meters: defaultdict[WorkerId, LinkMeter] = defaultdict(LinkMeter)

    @property
    def busy_keys(self) -> set[TransferKey]:
        """Transfers that have a write in flight."""
        return {one.key for one in self._in_flight}

    def in_flight(self, key: TransferKey) -> tuple[int, int]:
        """How many writes of a transfer are in flight, and their bytes."""
        sizes = [one.write.request.num_bytes for one in self._in_flight if one.key == key]
        return len(sizes), sum(sizes)

    def send(self, to: Destination, fill: Callable[[memoryview], tuple[int, bytes]]) -> int:
        """Lends a free slot, lets `fill` pack it, and writes it; its bytes. `fill` returns them and the tag that follows.

        Raises what `fill` or the transport raises, with the slot free again.
        """
        owner = self._next_owner
        self._next_owner += 1
        (local_slot,) = self.slots.lend(owner, 1)
        try:
            size, tag = fill(self._arena.slot(local_slot))
            posted_at = self._clock()
            write = self._transport.write(WriteRequest(to.peer, local_slot, to.slot, size, tag))
        except Exception:
            self.slots.free(owner)
            raise
        self._in_flight.append(_InFlight(write, owner, to.key))
        self._meters[to.peer].posted(owner, posted_at, is_paced=to.is_paced)
        return size

    def settle(self) -> tuple[int, list[TransferKey]]:
        """Frees the slots of terminal writes: how many there were, and whose failed."""
        still: list[_InFlight] = []
        failed: list[TransferKey] = []
        ends: defaultdict[WorkerId, list[WriteEnd]] = defaultdict(list)
        for one in self._in_flight:
            state = self._transport.state(one.write)
            if state is WriteState.PENDING:
                still.append(one)
                continue
            self.slots.free(one.owner)
            is_done = state is WriteState.DONE
            if not is_done:
                failed.append(one.key)
            request = one.write.request
            ends[request.peer].append(WriteEnd(one.owner, request.num_bytes, is_done))
        num_settled = len(self._in_flight) - len(still)
        self._in_flight = still
        if ends:
            self._measure(ends)
        return num_settled, failed

    def forget(self, peer: WorkerId) -> None:
        """What was learned of a link that is gone."""
        self.links.pop(peer, None)
        self._meters.pop(peer, None)

    def _measure(self, ends: dict[WorkerId, list[WriteEnd]]) -> None:
        now = self._clock()
        for peer, ended in ends.items():
            if (meter := self._meters.get(peer)) is not None:
                meter.ended(ended, now)
                if meter.estimate.num_samples:
                    self.links[peer] = meter.estimate
