"""Tells workers that a peer's life is over, so that what it held with them is free. Says it only when that is certain: one
that is merely silent may be stopped and write again, so that what it holds stays in quarantine.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

from protocol.errors import KvferryError
from router.fleet.clients import DecodeClient, PrefillClient
from router.fleet.failures import FailureCause, FailureCounts
from router.fleet.member import Member

log = logging.getLogger(__name__)

MAX_DEPARTED = 64
"""Former lives of which somebody is still to be told; the oldest is given up beyond that."""


class Departures:
    """Of the workers of two tables, which are the fleet's own."""

    def __init__(
        self,
        prefills: Mapping[str, Member[PrefillClient]],
        decodes: Mapping[str, Member[DecodeClient]],
        failures: FailureCounts,
    ) -> None:
        self._prefills = prefills
        self._decodes = decodes
        self._failures = failures
        self._departed: deque[tuple[Member[Any], bool]] = deque(maxlen=MAX_DEPARTED)

    def replaced(self, member: Member[Any], *, has_ended: bool) -> None:
        """Another life has taken the place of a member, in the table already. `has_ended` says that its process is known to
        be gone; else its address is asked until nobody listens there.
        """
        self._departed.append((member, has_ended))

    async def look_after(self) -> None:
        """One round: peers are told of whoever is known to be gone and was not told of yet."""
        members: list[Member[Any]] = [*self._prefills.values(), *self._decodes.values()]
        silent = [one for one in members if not one.is_healthy]
        departed = list(self._departed)
        await asyncio.gather(
            *(self._bury(member, has_ended=False) for member in silent),
            *(self._bury(member, has_ended=has_ended) for member, has_ended in departed),
        )
        for one in departed:
            if one[0].forgotten_by >= set(self._peers(one[0])) and one in self._departed:
                self._departed.remove(one)

    async def _bury(self, member: Member[Any], *, has_ended: bool) -> None:
        peers = self._peers(member)
        mourners = [one for one in peers.values() if one.is_healthy and one.name not in member.forgotten_by]
        is_all_done = member.is_known_gone and not mourners
        if is_all_done or not (has_ended or await member.client.is_gone()):
            return
        if not member.is_known_gone:
            member.is_known_gone = True
            self._failures.count_worker(FailureCause.WORKER_GONE, member.name, f"{member.description.worker} has ended")
        table: Mapping[str, Member[Any]] = self._prefills if member.description.role == "prefill" else self._decodes
        is_present = table.get(member.name) is member
        member.links.clear()
        for peer in mourners:
            if is_present:
                peer.links.pop(member.name, None)
            try:
                await peer.client.forget(member.description.worker)
                member.forgotten_by.add(peer.name)
            except KvferryError as error:
                log.warning("%s was not told that %s is gone: %s", peer.name, member.description.worker, error.message)

    def _peers(self, member: Member[Any]) -> Mapping[str, Member[Any]]:
        return self._decodes if member.description.role == "prefill" else self._prefills
