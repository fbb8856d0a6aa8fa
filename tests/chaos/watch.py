"""Looks at a cluster from outside: whether it is whole, how little was free, what is left when nothing runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

LOOK_EVERY_S = 0.25
HEALTH_TIMEOUT_S = 2.0


async def look(client: httpx.AsyncClient) -> dict[str, Any] | None:
    """The router's view of the cluster; None while no router answers."""
    try:
        response = await client.get("/cluster", timeout=5.0)
        return dict(response.json()) if response.status_code == 200 else None
    except (httpx.HTTPError, ValueError):
        return None


@dataclass(frozen=True, slots=True)
class Shape:
    """How many workers and links a whole cluster has."""

    num_workers: int = 4
    num_links: int = 4


def is_whole(view: Mapping[str, Any] | None, shape: Shape, gone: Iterable[int] = ()) -> bool:
    """All workers healthy, in other processes than those that are gone, none draining, all links there, and ready."""
    if view is None or (len(view["workers"]), len(view["links"])) != (shape.num_workers, shape.num_links):
        return False
    away = set(gone)
    return bool(view["is_ready"]) and all(
        one["is_healthy"] and one["process_id"] not in away and not one["status"].get("is_draining")
        for one in view["workers"]
    )


def process_ids(view: Mapping[str, Any], names: Iterable[str]) -> tuple[int, ...]:
    """The processes of workers by name."""
    by_name = {one["name"]: one["process_id"] for one in view["workers"]}
    return tuple(by_name[name] for name in names)


def leftovers(view: Mapping[str, Any]) -> list[str]:
    """What is still held; empty for an idle cluster."""
    found = []
    for one in view["workers"]:
        status = one["status"]
        for free, total in (("num_free_blocks", "num_blocks"), ("num_free_slots", "num_slots")):
            if status[free] != status[total]:
                found.append(f"{one['name']}: {free} is {status[free]} of {status[total]}")
        for name in ("num_running", "num_waiting", "num_quarantined_slots"):
            if status.get(name):
                found.append(f"{one['name']}: {name} is {status[name]}")
    if leases := (view.get("reservations") or {}).get("leases"):
        found.append(f"the planner holds {len(leases)} leases")
    return found


def gauges_left(metrics: str) -> list[str]:
    """Gauges of the router's own requests that are not zero."""
    names = ("kvferry_requests_running", "kvferry_requests_waiting")
    lines = [line for line in metrics.splitlines() if line.startswith(names)]
    return [line for line in lines if float(line.split()[-1]) != 0.0]


@dataclass(slots=True)
class Lows:
    """The least that was ever seen free, as a share, by role and resource; and the most counted by worker and counter."""

    free: dict[str, float] = field(default_factory=dict)
    incarnations: dict[str, set[str]] = field(default_factory=dict)

    def take(self, view: Mapping[str, Any]) -> None:
        """Another look."""
        for one in view["workers"]:
            self.incarnations.setdefault(one["name"], set()).add(one["incarnation"])
            for what in ("blocks", "slots"):
                key = f"{one['role']} {what}"
                share = one["status"][f"num_free_{what}"] / max(1, one["status"][f"num_{what}"])
                self.free[key] = min(share, self.free.get(key, 1.0))

    @property
    def num_restarts(self) -> int:
        """Incarnations beyond each worker's first."""
        return sum(len(seen) - 1 for seen in self.incarnations.values())


class Watch:
    """Keeps looking while it runs."""

    def __init__(self, client: httpx.AsyncClient, shape: Shape) -> None:
        self.client = client
        self._shape = shape
        self.lows = Lows()
        self.health_s: list[float] = []

    async def run(self) -> None:
        """Looks until cancelled, and times `/health` whenever a router answers it at all."""
        while True:
            await self._time_health()
            if (view := await look(self.client)) is not None:
                self.lows.take(view)
            await asyncio.sleep(LOOK_EVERY_S)

    async def _time_health(self) -> None:
        asked_at = time.monotonic()
        try:
            response = await self.client.get("/health", timeout=HEALTH_TIMEOUT_S)
        except httpx.HTTPError:
            return  # the router itself was harmed, which others judge
        if response.status_code == 200:
            self.health_s.append(time.monotonic() - asked_at)

    async def until_whole(self, gone: Iterable[int], timeout_s: float) -> float:
        """Waits until the cluster is whole; when that was. Raises `TimeoutError` with the last view."""
        deadline = time.monotonic() + timeout_s
        while not is_whole(view := await look(self.client), self._shape, gone):
            if time.monotonic() > deadline:
                raise TimeoutError(f"the cluster is not whole after {timeout_s:.0f} s: {_brief(view)}")
            await asyncio.sleep(LOOK_EVERY_S)
        return time.monotonic()

    async def until_idle(self, timeout_s: float) -> list[str]:
        """Waits until nothing is held; what is still held at the end."""
        deadline = time.monotonic() + timeout_s
        while True:
            view = await look(self.client)
            left = ["no router answers"] if view is None else leftovers(view)
            if not left:
                metrics = await self.client.get("/metrics")
                left = gauges_left(metrics.text)
            if not left or time.monotonic() > deadline:
                return left
            await asyncio.sleep(LOOK_EVERY_S)


def _brief(view: Mapping[str, Any] | None) -> str:
    if view is None:
        return "no router answers"
    workers = [
        f"{one['name']}@{one['incarnation']} {'healthy' if one['is_healthy'] else 'not healthy'}"
        for one in view["workers"]
    ]
    return f"{', '.join(workers)}; {len(view['links'])} links; {view['reason'] or 'ready'}"
