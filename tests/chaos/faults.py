"""Does the faults of a schedule to a cluster, one after the other, and measures how long it takes to recover from each."""

from __future__ import annotations

import asyncio
import itertools
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.clients import Doors, ask_one
from tests.chaos.judge import Trouble
from tests.chaos.questions import Ask, Door, Manner, Question
from tests.chaos.schedule import Deed, Fault, FaultKind
from tests.chaos.site import Site
from tests.chaos.watch import Watch, look, process_ids

RECOVER_WITHIN_S = 90.0
AFTERMATH_S = 1.0
"""How long after the cluster is whole again a request may still meet a fault's traces."""
PROBE_TIMEOUT_S = 10.0
PROBE_PAUSE_S = 0.05
_SIGNALS = {
    Deed.KILL: signal.SIGKILL,
    Deed.TERMINATE: signal.SIGTERM,
    Deed.PAUSE: signal.SIGSTOP,
    Deed.HANG: signal.SIGSTOP,
    Deed.FREEZE: signal.SIGSTOP,
}


@dataclass(frozen=True, slots=True)
class Done:
    """A fault that was done: the seconds until a request that was asked after it was served, and until all was whole."""

    fault: Fault
    trouble: Trouble
    served_s: float
    whole_s: float


@dataclass(slots=True)
class Turnstile:
    """Lets requests go by number, up to the next fault that is due; counts those that went."""

    num_sent: int = 0
    _limit: float = 0.0
    _changed: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def open_to(self, limit: float) -> None:
        """Lets requests below `limit` go."""
        async with self._changed:
            self._limit = limit
            self._changed.notify_all()

    async def go(self, number: int) -> None:
        """Waits until this request may go."""
        async with self._changed:
            await self._changed.wait_for(lambda: number < self._limit)
            self.num_sent += 1
            self._changed.notify_all()

    async def until_sent(self, num_requests: int) -> None:
        """Waits until so many have gone."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.num_sent >= num_requests)


class Injector:
    """Works through a schedule. `say` is told what happens."""

    def __init__(self, site: Site, doors: Doors, watch: Watch, say: Callable[[str], None]) -> None:
        self.done: list[Done] = []
        self.complaints: list[str] = []
        self._site = site
        self._doors = doors
        self._watch = watch
        self._say = say
        self._probes = itertools.count()

    async def run(self, faults: Sequence[Fault], turnstile: Turnstile, slack: int) -> None:
        """Does each fault when it is due and the one before is over; requests get `slack` ahead of it at most.

        After one from which the cluster does not recover there is none, and a complaint.
        """
        for fault in faults:
            await turnstile.open_to(fault.at_request + slack)
            await turnstile.until_sent(fault.at_request)
            try:
                self.done.append(await self._do(fault))
            except TimeoutError as error:
                self.complaints.append(f"fault {fault.number} ({fault}): {error}")
                break
        await turnstile.open_to(float("inf"))

    async def _do(self, fault: Fault) -> Done:
        view = await look(self._doors.client)
        if view is None:
            raise RuntimeError(f"no router answers before fault {fault.number}")
        kind = fault.kind
        victims = self._victims(fault, view)
        began_at = time.monotonic()
        self._say(f"fault {fault.number}: {fault} (process {', '.join(map(str, victims)) or 'none'})")
        self._harm(kind, victims)
        probe = asyncio.create_task(self._until_served())
        try:
            if kind.lasts:
                await asyncio.sleep(fault.seconds)
                self._undo(kind, victims)
            served_at = await probe
        finally:
            probe.cancel()
        gone = victims if kind.ends_process and not kind.is_to_router else ()
        whole_at = await self._watch.until_whole(gone, RECOVER_WITHIN_S)
        self._say(f"  served after {served_at - began_at:.1f} s, whole after {whole_at - began_at:.1f} s")
        trouble = Trouble(kind, began_at, whole_at + AFTERMATH_S)
        return Done(fault, trouble, served_at - began_at, whole_at - began_at)

    def _victims(self, fault: Fault, view: Mapping[str, Any]) -> tuple[int, ...]:
        if fault.kind.is_to_link:
            return ()
        if fault.kind.is_to_router:
            return (self._site.family.router_id(),)
        return process_ids(view, fault.kind.victims(fault.victim))

    def _harm(self, kind: FaultKind, victims: tuple[int, ...]) -> None:
        if kind.is_to_link:
            self._site.set_link(False)
        else:
            self._site.family.send(victims, _SIGNALS[kind.deed])

    def _undo(self, kind: FaultKind, victims: tuple[int, ...]) -> None:
        if kind.is_to_link:
            self._site.set_link(True)
        else:
            self._site.family.send(victims, signal.SIGCONT)

    async def _until_served(self) -> float:
        """Asks short questions until one is answered; when that was. Raises `TimeoutError`."""
        deadline = time.monotonic() + RECOVER_WITHIN_S
        while time.monotonic() < deadline:
            number = next(self._probes)
            question = Question(number, tuple(range(40, 80)), "", {"max_tokens": 4, "temperature": 0})
            ask = Ask(number, question, Door.COMPLETIONS, Manner.WHOLE, f"probe-{number}", timeout_s=PROBE_TIMEOUT_S)
            outcome = await ask_one(self._doors, ask)
            if outcome.is_done:
                return outcome.ended_at
            await asyncio.sleep(PROBE_PAUSE_S)
        raise TimeoutError(f"no request was served within {RECOVER_WITHIN_S:.0f} s")
