"""Drains a worker for an operator: `POST /cluster/workers/{name}/drain`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from router.fleet.fleet import Fleet
from router.fleet.member import Member
from router.http.draining import DrainBody, read_drain
from router.http.errors import WorkerNotFound

PATH = "/cluster/workers/{name}/drain"


def add_drain_route(app: FastAPI, fleet: Fleet, view: Callable[[Member[Any]], dict[str, Any]]) -> None:
    """Adds the route. It answers at once, with the worker as `view` shows it; that tells from then on how far it is."""

    @app.post(PATH)
    async def drain(name: str, request: Request) -> Response:
        asked = await read_drain(request)
        return JSONResponse(view(await drain_worker(fleet, name, asked)), 202)


async def drain_worker(fleet: Fleet, name: str, asked: DrainBody) -> Member[Any]:
    """Has a worker take nothing new from now on. Raises `WorkerNotFound`, and `WorkerUnavailable` when it does not answer."""
    member = next((one for one in fleet.members if one.name == name), None)
    if member is None:
        known = ", ".join(one.name for one in fleet.members) or "none"
        raise WorkerNotFound(f"there is no worker {name!r}; there are: {known}", param="name")
    await member.client.drain(asked.timeout_s, asked.restart)
    member.status = await member.client.status()  # at once: nothing new is sent there
    return member
