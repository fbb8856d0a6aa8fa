"""A client's session with a server across the two hosts: requests, counts, and what ends the client. Asks nothing by itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httpx

from benchmarks.links.counts import Landed, landed
from benchmarks.load.client import Target

STATUS_EVERY_S = 0.1
STATUS_TRIES = 100
PLANNED_TRIES = 10
"""How often the counts are read again for the rates of a planned transfer, which the router may learn after its end."""
WRONG_SIDES = 3
"""The client's exit code where a prefill worker is not beside the router, or a decode worker is: nothing was asked."""


class WrongSides(RuntimeError):
    """The workers are not on the hosts that they are measured on."""


@dataclass(frozen=True, slots=True)
class Session:
    """A server and its only model."""

    client: httpx.AsyncClient
    model: str

    def target(self, timeout_s: float) -> Target:
        """Where a request goes that may take as long."""
        return Target(self.client, self.model, timeout_s)

    async def landed(self) -> Landed:
        """The counts as the router last heard."""
        return landed((await self.client.get("/cluster")).raise_for_status().json(), self.client.base_url.host)

    async def landed_since(self, before: Landed, num_transfers: int, *, is_planned: bool) -> Landed:
        """The counts once both sides have counted that many more transfers, with the rates of those that were planned.

        Raises `TimeoutError` when they are not heard of. A plan may have been refused: its rates are waited for briefly.
        """
        num_more_tries = PLANNED_TRIES if is_planned else 0
        for _ in range(STATUS_TRIES):
            now = await self.landed()
            if now.has_more_than(before, num_transfers):
                if not num_more_tries or len(now.planned_since(before)) >= num_transfers:
                    return now
                num_more_tries -= 1
            await asyncio.sleep(STATUS_EVERY_S)
        raise TimeoutError(f"not {num_transfers} transfers were counted in {STATUS_TRIES * STATUS_EVERY_S:.0f} s")


def run_client(name: str, client: httpx.AsyncClient, ask: Callable[[Session], Awaitable[None]]) -> int:
    """Runs `ask` with a session of `client`, which is closed; the exit code: 0 when everything was asked, whatever the answers,
    1 when the server could not be reached or stopped answering, `WRONG_SIDES` when nothing was asked.
    """
    try:
        asyncio.run(_run(client, ask))
    except WrongSides as error:
        print(f"{name}: {error}", file=sys.stderr)
        return WRONG_SIDES
    except (OSError, TimeoutError, RuntimeError, httpx.HTTPError) as error:
        print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


async def _run(client: httpx.AsyncClient, ask: Callable[[Session], Awaitable[None]]) -> None:
    async with client:
        listed = await client.get("/v1/models")
        session = Session(client, str(listed.raise_for_status().json()["data"][0]["id"]))
        if not (await session.landed()).are_sides_right:
            raise WrongSides("a prefill worker is not on the router's host, or a decode worker is")
        await ask(session)
