"""The links of a fleet: every prefill worker shakes hands with every decode worker, and again after either was restarted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from protocol.errors import KvferryError, LayoutMismatch
from protocol.ids import WorkerId
from router.fleet.clients import DecodeClient, PrefillClient
from router.fleet.member import Member

log = logging.getLogger(__name__)

PairOfLives = tuple[WorkerId, WorkerId]


class Links:
    """Made between the workers of two tables, which are the fleet's own. What was made is kept in the prefill workers'
    members. Belongs to one event loop.
    """

    def __init__(
        self, prefills: Mapping[str, Member[PrefillClient]], decodes: Mapping[str, Member[DecodeClient]]
    ) -> None:
        self._prefills = prefills
        self._decodes = decodes
        self._under_way: dict[PairOfLives, asyncio.Task[None]] = {}

    async def make_all(self) -> None:
        """Shakes hands between all pairs that have not yet, one after the other: each link is tested on its own. A pair that
        refuses is not used; the reason is kept.
        """
        for prefill, decode in self._missing():
            await asyncio.shield(self._start(prefill, decode))

    def start_missing(self) -> None:
        """The same for all pairs at once, without waiting: a worker that hangs keeps no other from being linked."""
        for prefill, decode in self._missing():
            self._start(prefill, decode)

    def forget(self, name: str) -> None:
        """A worker has another life: it is linked anew, whatever came of its links."""
        for prefill in self._prefills.values():
            names = list(self._decodes) if prefill.name == name else [name]
            for decode in names:
                prefill.links.pop(decode, None)
                prefill.link_refusals.pop(decode, None)
                prefill.refused_for_good.discard(decode)

    async def close(self) -> None:
        """Ends what is under way."""
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _missing(self) -> list[tuple[Member[PrefillClient], Member[DecodeClient]]]:
        return [
            (prefill, decode)
            for prefill in self._prefills.values()
            for decode in self._decodes.values()
            if prefill.is_healthy
            and decode.is_healthy
            and decode.name not in prefill.links
            and decode.name not in prefill.refused_for_good
        ]

    def _start(self, prefill: Member[PrefillClient], decode: Member[DecodeClient]) -> asyncio.Task[None]:
        lives = prefill.description.worker, decode.description.worker
        if (task := self._under_way.get(lives)) is None:
            task = self._under_way[lives] = asyncio.create_task(self._make(prefill, decode, lives))
            task.add_done_callback(lambda _: self._under_way.pop(lives, None))
        return task

    async def _make(self, prefill: Member[PrefillClient], decode: Member[DecodeClient], lives: PairOfLives) -> None:
        try:
            reply = await prefill.client.connect(decode.client.target)
        except KvferryError as error:
            if self._are_present(lives):
                prefill.link_refusals[decode.name] = f"{prefill.name} and {decode.name}: {error.message}"
                if isinstance(error, LayoutMismatch):  # all else may be otherwise the next time
                    prefill.refused_for_good.add(decode.name)
            log.warning("%s cannot ship to %s: %s", prefill.name, decode.name, error.message)
            return
        if not self._are_present(lives):
            return  # one of them was restarted meanwhile; the next round links its new life
        prefill.link_refusals.pop(decode.name, None)
        prefill.links[decode.name] = reply
        rate = reply.bytes_per_second / 1e9
        log.info("link %s -> %s: %s, %.2f GB/s", prefill.name, decode.name, reply.transport, rate)

    def _are_present(self, lives: PairOfLives) -> bool:
        prefill, decode = self._prefills.get(lives[0].name), self._decodes.get(lives[1].name)
        return (
            prefill is not None
            and decode is not None
            and (prefill.description.worker, decode.description.worker) == lives
        )
