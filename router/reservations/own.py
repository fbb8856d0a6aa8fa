"""Reservations of a router that has the planner in its own process: nobody else shares these workers.

Knows when to ask the planner for changed paces; knows neither requests nor workers.
"""

from __future__ import annotations

import asyncio
import logging
import math
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
RENEW_EVERY_S = 1.0
"""Leases live many times as long."""


class OwnReservations:
    """See `contract.Reservations`. `owner` is the router's name among the owners of leases, `clock` gives seconds.

    What has landed is kept until the planner is asked for something, or the timer runs: nobody hears of changes before, and of
    a transfer that has ended meanwhile nothing has to be planned anew.
    """

    def __init__(self, desk: PlannerDesk, owner: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._desk = desk
        self._owner = owner
        self._clock = clock
        self._on_pace: OnPace = _to_nobody
        self._held: set[int] = set()
        self._landed: dict[int, int] = {}
        self._renewed_at = -math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._is_due = False

    async def start(self, on_pace: OnPace) -> None:
        """Paces that change are told from now on."""
        self._on_pace = on_pace

    async def reserve(self, ask: TransferAsk) -> Reservation:
        """Answers at once. Raises `PlanRefused` and `Overloaded`."""
        now = self._clock()
        self._tell_landed(now)
        lease_id, pace = self._desk.reserve(self._owner, ask, now)
        self._held.add(lease_id)
        self._look_after(0.0)
        return Reservation(lease_id, pace)

    def progress(self, lease_id: int, acknowledged_bytes: int) -> None:
        """Keeps what has landed of a lease that is held, to be told soon."""
        if lease_id in self._held:
            self._landed[lease_id] = acknowledged_bytes

    def release(self, lease_id: int) -> None:
        """Gives a lease back, and others what it had."""
        self._held.discard(lease_id)
        try:
            self._desk.release(lease_id, self._clock(), self._landed.pop(lease_id, 0))
        except KvferryError as error:  # not `_never_raising`, which costs: every request comes by here
            _warn("a release", error)
        self._look_after(0.0)

    def observe(self, sight: NetworkSight) -> None:
        """Tells what this router sees."""
        with _never_raising("what the router sees"):
            self._desk.observe(self._owner, sight, self._clock())

    def use(self) -> NetworkUse:
        """Ports, leases and their use now."""
        now = self._clock()
        self._tell_landed(now)
        return self._desk.use(now)

    async def close(self) -> None:
        """Gives back all, and stops the timer."""
        self._held.clear()
        self._landed.clear()
        self._look_after(0.0)
        with _never_raising("that this router leaves"):
            self._desk.leave(self._owner, self._clock())

    def tell_changes(self) -> None:
        """Tells the paces that have changed. The timer's work; tests with a clock of their own call it themselves."""
        with _never_raising("a question for changes"):
            now = self._clock()
            self._tell_landed(now)
            if now - self._renewed_at >= RENEW_EVERY_S:
                self._desk.renew(self._owner, now)  # who asks is alive
                self._renewed_at = now
            for lease_id, pace in self._desk.changes(now).get(self._owner, ()):
                self._on_pace(lease_id, pace)

    def _tell_landed(self, now: float) -> None:
        landed, self._landed = self._landed, {}
        for lease_id, acknowledged_bytes in landed.items():
            with _never_raising("progress"):
                self._desk.progress(lease_id, acknowledged_bytes, now)

    def _look_after(self, delay_s: float) -> None:
        """Asks for changes after so long, instead of when it was due before; never while nothing is held."""
        if self._timer is not None:
            if self._is_due and self._held:
                return
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer) if self._held else None
        self._is_due = not delay_s

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
        _warn(what, error)


def _warn(what: str, error: KvferryError) -> None:
    log.warning("the planner did not take %s: %s", what, error.message)
