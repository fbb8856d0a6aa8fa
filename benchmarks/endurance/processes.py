"""The processes of a cluster, watched from outside: memory, file descriptors and threads over time.

Knows how `kvferry serve` and Ray name their processes, and nothing of what they do.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import psutil

ROUTER, SERVE, RAY = "router", "serve", "ray"
_ROUTER_TITLE, _SERVE_MODULE = "RouterActor", "cluster.cli"


@dataclass(frozen=True, slots=True)
class Reading:
    """What one process, or several together, held at a time."""

    resident_bytes: int
    num_descriptors: int
    num_threads: int

    def __add__(self, other: Reading) -> Reading:
        return Reading(
            self.resident_bytes + other.resident_bytes,
            self.num_descriptors + other.num_descriptors,
            self.num_threads + other.num_threads,
        )


@dataclass(slots=True)
class Watch:
    """Readings of the processes in `members`, by the name that they go by; `places` says at what each was taken."""

    members: Mapping[str, list[psutil.Process]]
    places: list[float] = field(default_factory=list)
    readings: dict[str, list[Reading]] = field(default_factory=dict)

    def look(self, place: float) -> None:
        """Takes a reading of each name. Raises `RuntimeError` when one of its processes has gone, but for Ray's own."""
        found = {name: _reading(name, members) for name, members in self.members.items()}
        self.places.append(place)
        for name, reading in found.items():
            self.readings.setdefault(name, []).append(reading)

    @contextmanager
    def every(self, period_s: float, place: Callable[[], float]) -> Iterator[None]:
        """Looks every `period_s` in the background while the block runs, at what `place` then says."""

        async def keep_looking() -> None:
            while True:
                self.look(place())
                await asyncio.sleep(period_s)

        looking = asyncio.create_task(keep_looking())
        try:
            yield
        finally:
            looking.cancel()
        if looking.done():
            looking.result()


def processes_of(view: Mapping[str, Any], started: psutil.Process) -> dict[str, list[psutil.Process]]:
    """The processes that `started` has started, by name: workers as in the router's `view`, `router`, `serve`, and all of
    Ray's own together. Raises `RuntimeError` when the router or a worker is not among them.
    """
    workers = {int(worker["process_id"]): str(worker["name"]) for worker in view["workers"]}
    found: dict[str, list[psutil.Process]] = {}
    for process in started.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            name = workers.get(process.pid) or name_of(process.cmdline())
            found.setdefault(name, []).append(process)
    if missing := {*workers.values(), ROUTER, SERVE} - {*found}:
        raise RuntimeError(f"no process of this machine is {', '.join(sorted(missing))}")
    return found


def name_of(command: list[str]) -> str:
    """What a process that is no worker goes by."""
    if command and _ROUTER_TITLE in command[0]:
        return ROUTER
    return SERVE if _SERVE_MODULE in command else RAY


def _reading(name: str, members: list[psutil.Process]) -> Reading:
    total = Reading(0, 0, 0)
    for process in members:
        try:
            with process.oneshot():
                total += Reading(process.memory_info().rss, process.num_fds(), process.num_threads())
        except psutil.NoSuchProcess:
            if name != RAY:  # which ends processes that it keeps in reserve
                raise RuntimeError(f"the process of {name} has gone") from None
    return total
