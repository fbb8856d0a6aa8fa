"""When a cluster is at rest: every block, slot and lease is free and nothing runs or waits. Read from the router's view."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any

import httpx

LOOK_EVERY_S = 0.02
EQUAL = (("num_free_blocks", "num_blocks"), ("num_free_slots", "num_slots"))
NONE_LEFT = ("num_running", "num_waiting", "num_quarantined_slots")


class NotAtRest(RuntimeError):
    """Something was still held when the time was over."""


def unrest(view: Mapping[str, Any]) -> list[str]:
    """What is still held, a sentence each."""
    found = []
    for worker in view["workers"]:
        status = worker["status"]
        for free, total in EQUAL:
            if status[free] != status[total]:
                found.append(f"{worker['name']}: {free} is {status[free]} of {status[total]}")
        found += [f"{worker['name']}: {name} is {status[name]}" for name in NONE_LEFT if status[name]]
    for port in (view["reservations"] or {}).get("ports", ()):
        if port["num_leases"]:
            found.append(f"{port['worker']}: {port['num_leases']} leases of its {port['direction']}")
    return found


async def come_to_rest(client: httpx.AsyncClient, within_s: float) -> float:
    """Asks until the cluster is at rest; the seconds that it took. Raises `NotAtRest`, `httpx.HTTPError`."""
    start = time.monotonic()
    while True:
        response = await client.get("/cluster")
        still_held = unrest(response.raise_for_status().json())
        took_s = time.monotonic() - start
        if not still_held:
            return took_s
        if took_s > within_s:
            raise NotAtRest(f"after {took_s:.1f} s: {'; '.join(still_held)}")
        await asyncio.sleep(LOOK_EVERY_S)
