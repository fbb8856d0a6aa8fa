"""The planner's end of one router's stream: messages in, and what there is to say out, as few messages as can be.

Knows nothing of leases but their ids.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from protocol import kvferry_planner_pb2 as pb
from protocol.errors import DeadlineExceeded, KvferryError, Overloaded
from protocol.pace import Pace
from protocol.wire import pace_to_wire
from router.reservations.wire import refusal_to_wire

MAX_UNSENT_ANSWERS = 4096
"""Answers that a router may lag behind. Paces are merged, so that there are at most as many as leases."""

Context = grpc.aio.ServicerContext[Any, Any]


class PlannerSession:
    """One router's stream. Belongs to the server's loop."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.has_left = False
        self.use_told_at = float("-inf")
        self._pending = pb.PlannerMessage()
        self._paces: dict[int, Pace] = {}
        self._wake = asyncio.Event()
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def grant(self, number: int, lease_id: int, pace: Pace) -> None:
        """Answers an ask with a lease."""
        self._pending.grants.add(number=number, lease_id=lease_id, pace=pace_to_wire(pace))
        self._answered()

    def refuse(self, number: int, error: KvferryError) -> None:
        """Answers an ask with an error."""
        self._pending.refusals.append(refusal_to_wire(number, error))
        self._answered()

    def tell_pace(self, lease_id: int, pace: Pace) -> None:
        """Says what a lease may do from now on, in place of what was not sent yet."""
        self._paces[lease_id] = pace
        self._wake.set()

    def tell_use(self, use: pb.NetworkUse, now: float) -> None:
        """Says how the network is used."""
        self._pending.use.CopyFrom(use)
        self.use_told_at = now
        self._wake.set()

    def end(self, error: KvferryError) -> None:
        """Ends the stream with `error`."""
        if not self._ended.done():
            self._ended.set_exception(error)

    async def serve(self, context: Context, take: Callable[[pb.RouterMessage], None], silence_s: float) -> None:
        """Gives messages to `take` until the router ends its stream.

        Raises what `take` raises, what `end` was given, `DeadlineExceeded` when nothing was heard for `silence_s` or could be
        sent within it, and `Overloaded` for more than `MAX_UNSENT_ANSWERS`.
        """
        await context.send_initial_metadata(())  # tells the router that somebody listens
        tasks = (
            asyncio.create_task(self._read(context, take, silence_s)),
            asyncio.create_task(self._write(context, silence_s)),
        )
        try:
            done, _ = await asyncio.wait((*tasks, self._ended), return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            if not self._ended.cancel() and not self._ended.cancelled():
                self._ended.exception()  # it is looked at, whether or not it was what ended the stream
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, context: Context, take: Callable[[pb.RouterMessage], None], silence_s: float) -> None:
        while not self.has_left:
            try:
                async with asyncio.timeout(silence_s):
                    message = await context.read()
            except TimeoutError:
                raise DeadlineExceeded(f"router {self.owner} said nothing for {silence_s:.1f} s") from None
            if not isinstance(message, pb.RouterMessage):
                return  # the end of the stream
            self.has_left = message.is_leaving
            take(message)

    async def _write(self, context: Context, silence_s: float) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(0)  # what else is ready in this turn goes along
            self._wake.clear()
            message, self._pending = self._pending, pb.PlannerMessage()
            paces, self._paces = self._paces, {}
            message.paces.extend(
                pb.LeasePace(lease_id=lease_id, pace=pace_to_wire(pace)) for lease_id, pace in paces.items()
            )
            try:
                async with asyncio.timeout(silence_s):
                    await context.write(message)
            except TimeoutError:
                raise DeadlineExceeded(f"router {self.owner} read nothing for {silence_s:.1f} s") from None

    def _answered(self) -> None:
        if len(self._pending.grants) + len(self._pending.refusals) > MAX_UNSENT_ANSWERS:
            self.end(Overloaded(f"router {self.owner} asks for more than it reads"))
        self._wake.set()
