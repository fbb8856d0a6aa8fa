"""Reservations of a router that has the planner in its own process: nobody else shares these workers.

Knows when to ask the planner for changed paces; knows neither requests nor workers.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from protocol.errors import KvferryError
from protocol.pace import Pace
from router.reservations.contract import OnPace, Reservation
from transfer.planner.desk import PlannerDesk
from transfer.planner.network import NetworkSight, NetworkUse, TransferAsk

log = logging.getLogger(__name__)

CHANGES_EVERY_S = 0.05
"""While leases are held: windows begin and end without anybody's doing."""


class OwnReservations:
    """See `contract.Reservations`. `owner` is the router's name among the owners of leases, `clock` gives seconds."""

    def __init__(self, desk: PlannerDesk, owner: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._desk = desk
        self._owner = owner
        self._clock = clock
        self._on_pace: OnPace = _to_nobody
        self._held: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None

    async def start(self, on_pace: OnPace) -> None:
        """Paces that change are told from now on."""
        self._on_pace = on_pace

    async def reserve(self, ask: TransferAsk) -> Reservation:
        """Answers at once. Raises `PlanRefused` and `Overloaded`."""
        lease_id, pace = self._desk.reserve(self._owner, ask, self._clock())
        self._held.add(lease_id)
        self._look_after(0.0)
        return Reservation(lease_id, pace)

    def progress(self, lease_id: int, acknowledged_bytes: int) -> None:
        """Tells what has landed."""
        with _never_raising("progress"):
            self._desk.progress(lease_id, acknowledged_bytes, self._clock())

    def release(self, lease_id: int) -> None:
        """Gives a lease back, and others what it had."""
        self._held.discard(lease_id)
        with _never_raising("a release"):
            self._desk.release(lease_id, self._clock())
        self._look_after(0.0)

    def observe(self, sight: NetworkSight) -> None:
        """Tells what this router sees."""
        with _never_raising("what the router sees"):
            self._desk.observe(self._owner, sight, self._clock())

    def use(self) -> NetworkUse:
        """Ports, leases and their use now."""
        return self._desk.use(self._clock())

    async def close(self) -> None:
        """Gives back all, and stops the timer."""
        self._held.clear()
        self._look_after(0.0)
        with _never_raising("that this router leaves"):
            self._desk.leave(self._owner, self._clock())

    def tell_changes(self) -> None:
        """Tells the paces that have changed. The timer's work; tests with a clock of their own call it themselves."""
        with _never_raising("a question for changes"):
            now = self._clock()
            self._desk.renew(self._owner, now)  # who asks is alive
            for lease_id, pace in self._desk.changes(now).get(self._owner, ()):
                self._on_pace(lease_id, pace)

    def _look_after(self, delay_s: float) -> None:
        """Asks for changes after so long, instead of when it was due before; never while nothing is held."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer) if self._held else None

    def _on_timer(self) -> None:
        self._timer = None
        self.tell_changes()
        self._look_after(CHANGES_EVERY_S)


def _to_nobody(lease_id: int, pace: Pace) -> None:
    """Before the start."""


@contextmanager
def _never_raising(what: str) -> Iterator[None]:
    try:
        yield
    except KvferryError as error:
        log.warning("the planner did not take %s: %s", what, error.message)
