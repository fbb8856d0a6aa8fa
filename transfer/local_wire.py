"""Wires with a rate, on a clock that the caller owns: when a write that was posted has been carried. Moves no bytes.

Every destination takes in so many bytes a second, which the senders that write to it share equally, as TCP connections would;
the writes of one sender go one after another. A sender writes to several destinations as if each were alone, and tags alone
take no time. Knows nothing of arenas, tickets and faults.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from protocol.ids import WorkerId

Cargo = TypeVar("Cargo")

DUST_BYTES = 1e-3
"""Less than this is left of a write by rounding only."""


@dataclass(slots=True)
class _Carriage(Generic[Cargo]):
    cargo: Cargo
    num_bytes_left: float


_Port: TypeAlias = dict[WorkerId, deque[_Carriage[Cargo]]]
"""What one destination takes in: per sender its writes in their order. A sender without a write has no queue."""


class RatedWire(Generic[Cargo]):
    """Not for several threads at once. Time passes when it is asked for what was carried, and when something is posted."""

    def __init__(self, bytes_per_second: float, clock: Callable[[], float]) -> None:
        """`bytes_per_second`, more than 0, is what every destination takes in."""
        self._rate = bytes_per_second
        self._clock = clock
        self._at = clock()
        self._ports: dict[WorkerId, _Port[Cargo]] = {}
        self._carried: list[tuple[WorkerId, Cargo]] = []

    def post(self, sender: WorkerId, destination: WorkerId, cargo: Cargo, num_bytes: int) -> None:
        """Puts a write on the wire, behind what the sender posted to the same destination before."""
        self._advance()
        port = self._ports.setdefault(destination, {})
        port.setdefault(sender, deque()).append(_Carriage(cargo, float(num_bytes)))

    def carried(self) -> list[tuple[WorkerId, Cargo]]:
        """Senders and writes that have been carried since the last call, to each destination in the order of their ends."""
        self._advance()
        carried, self._carried = self._carried, []
        return carried

    def posted(self) -> Iterator[tuple[WorkerId, Cargo]]:
        """Senders and writes that `carried` has not given out yet."""
        yield from self._carried
        for port in self._ports.values():
            for sender, queue in port.items():
                yield from ((sender, one.cargo) for one in queue)

    def drop(self, sender: WorkerId) -> None:
        """A sender is gone, and with it what it had posted."""
        self._advance()
        self._carried = [one for one in self._carried if one[0] != sender]
        for port in self._ports.values():
            port.pop(sender, None)

    def _advance(self) -> None:
        now = self._clock()
        seconds, self._at = max(0.0, now - self._at), max(now, self._at)
        for port in self._ports.values():
            self._carry(port, seconds * self._rate)
        self._ports = {destination: port for destination, port in self._ports.items() if port}

    def _carry(self, port: _Port[Cargo], num_bytes: float) -> None:
        """Shares out what a port takes in, from one end of a write to the next."""
        while port:
            share = num_bytes / len(port)
            step = min(share, min(queue[0].num_bytes_left for queue in port.values()))
            num_bytes -= step * len(port)
            for sender, queue in list(port.items()):
                queue[0].num_bytes_left -= step
                if queue[0].num_bytes_left <= DUST_BYTES:
                    self._carried.append((sender, queue.popleft().cargo))
                if not queue:
                    del port[sender]
            if step == share:
                return
