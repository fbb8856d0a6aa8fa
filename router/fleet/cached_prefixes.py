"""What the workers of a fleet have in their prefix caches, kept up by following each of them, and how much of a prompt that is.

Each worker is asked for a snapshot and then tells its events. It is asked again when it has come back, when its stream broke
and when events are missing: at most once at a time, and the less often the more often it was of no use. What is known may be
somewhat old; a worker looks for itself when a prompt arrives. Chooses no worker.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from protocol.errors import KvferryError
from protocol.ids import WorkerId
from protocol.layout import KvDtype, KvLayout
from protocol.prefix import EXACT, PrefixIdentity, reusable_names, wire_precision
from protocol.prefix_events import EventBatch, PrefixSnapshot
from protocol.request import GenerateRequest
from protocol.wire_rule import WireOffer
from router.fleet.cached_tokens import NOTHING_CACHED, CachedTokens
from router.fleet.clients import PrefixNews
from router.fleet.member import Member
from router.fleet.prefix_index import PIECE_HASHES, PrefixIndex
from router.fleet.question import wire_rule_of

log = logging.getLogger(__name__)

DEFAULT_MAX_BLOCKS = 1 << 20
"""Of all workers together, a block that several have counting once: 230 MB, and 40 bytes more for each further worker that has
a block."""
MAX_LATE = 4096
"""Batches of events, one a step, that may come while a snapshot is taken over."""
LEAST_WAIT_S, MOST_WAIT_S = 5.0, 60.0
"""Between two questions for a snapshot to one worker: doubled from one to the next, until there was none for longer."""


@dataclass(slots=True, eq=False)
class _Following:
    """One life of a worker. `is_current` says that its snapshot has come and nothing was missed since. While a large one is
    taken over (`reading`), events wait in `late`.
    """

    worker: WorkerId
    is_current: bool = False
    asked_at: float = -math.inf
    wait_s: float = LEAST_WAIT_S
    asking: asyncio.Task[None] | None = None
    reading: asyncio.Task[None] | None = None
    late: list[EventBatch] = field(default_factory=list)

    def cancel(self) -> list[asyncio.Task[None]]:
        """Ends what is under way, and names it."""
        tasks = [task for task in (self.asking, self.reading) if task is not None]
        for task in tasks:
            task.cancel()
        return tasks


@dataclass(frozen=True, slots=True)
class _Layouts:
    """The distinct ones: of workers that keep prefixes, of the decode workers among them, and the types of all senders."""

    readers: tuple[KvLayout, ...] = ()
    receivers: tuple[KvLayout, ...] = ()
    sender_dtypes: tuple[KvDtype, ...] = ()


class CachedPrefixes:
    """Belongs to one event loop. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float], max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        self._clock = clock
        self._index = PrefixIndex(max_blocks)
        self._following: dict[str, _Following] = {}
        self._layouts = _Layouts()

    @property
    def num_blocks(self) -> int:
        """Blocks known of."""
        return len(self._index)

    def look_after(self, prefills: Sequence[Member[Any]], decodes: Sequence[Member[Any]]) -> None:
        """Forgets who is gone, or keeps no prefixes, and asks those for a snapshot of whom something is missing. Does not wait
        for an answer.
        """
        kept = {one.name: one for one in (*prefills, *decodes) if _keeps_prefixes(one)}
        for name, following in list(self._following.items()):
            if name not in kept or following.worker != kept[name].description.worker:
                self._forget(name)
        for name, member in kept.items():
            following = self._following.setdefault(name, _Following(member.description.worker))
            if self._should_ask(following):
                self._ask(following, member)
        self._layouts = _Layouts(
            readers=_distinct(one.description.layout for one in kept.values()),
            receivers=_distinct(one.description.layout for one in decodes if one.name in kept),
            sender_dtypes=tuple(dict.fromkeys(one.description.layout.dtype for one in prefills)),
        )

    def cached_tokens(self, request: GenerateRequest, wire: WireOffer) -> CachedTokens:
        """How much of the prompt each worker has. The prompt is hashed only as far as somebody has it, once for all workers
        whose KV has the same identity.
        """
        if not self._index:
            return NOTHING_CACHED
        found: dict[PrefixIdentity, dict[str, int]] = {}

        def tokens_at(layout: KvLayout, precision: str) -> dict[str, int]:
            identity = PrefixIdentity(
                layout.model_fingerprint,
                layout.dtype,
                layout.block_size,
                wire_precision=precision,
                cache_salt=request.cache_salt,
            )
            if identity not in found:
                found[identity] = self._walk(identity, request.prompt_token_ids)
            return found[identity]

        read: dict[str, int] = {}
        if request.num_prompt_logprobs is None:  # scores take the logits of the whole prompt, wherever it is read
            for layout in self._layouts.readers:
                read |= tokens_at(layout, EXACT)
        landed: dict[KvDtype, dict[str, int]] = {}
        rule = wire_rule_of(request, wire)
        for dtype in self._layouts.sender_dtypes:
            at_receivers: dict[str, int] = {}
            for layout in self._layouts.receivers:
                at_receivers |= tokens_at(layout, wire_precision(rule, dtype, layout.dtype))
            if at_receivers:
                landed[dtype] = at_receivers
        return CachedTokens(read, landed) if read or landed else NOTHING_CACHED

    async def close(self) -> None:
        """Asks nobody any more."""
        tasks = [task for one in self._following.values() for task in one.cancel()]
        await asyncio.gather(*tasks, return_exceptions=True)

    def _walk(self, identity: PrefixIdentity, token_ids: Sequence[int]) -> dict[str, int]:
        """Tokens by the name of each worker that has some."""
        found = self._index.num_cached_by_worker(reusable_names(identity, token_ids))
        return {worker.name: num * identity.block_size for worker, num in found.items() if num}

    def _should_ask(self, following: _Following) -> bool:
        if following.is_current or (following.asking is not None and not following.asking.done()):
            return False
        return self._clock() - following.asked_at >= following.wait_s

    def _ask(self, following: _Following, member: Member[Any]) -> None:
        now = self._clock()
        was_calm = now - following.asked_at > 2 * following.wait_s
        following.wait_s = LEAST_WAIT_S if was_calm else min(MOST_WAIT_S, 2 * following.wait_s)
        following.asked_at = now
        # On its own: a stream that does not open must not keep the workers from being looked after.
        following.asking = asyncio.create_task(self._follow(following, member))

    async def _follow(self, following: _Following, member: Member[Any]) -> None:
        try:
            await member.client.follow_prefixes(partial(self._on_news, following))
        except KvferryError as error:
            log.info("%s cannot be asked what it has cached, and will be again: %s", following.worker, error.message)

    def _on_news(self, following: _Following, news: PrefixNews) -> None:
        worker = following.worker
        if self._following.get(worker.name) is not following:
            return  # what a former life still has to say
        if isinstance(news, PrefixSnapshot):
            following.is_current = True
            self._replace(following, news)
        elif news is None:
            following.is_current = False
        elif following.reading is not None:
            following.late.append(news)
            if len(following.late) > MAX_LATE:
                following.late.clear()  # the next one then shows that some are missing
        elif not self._index.apply(worker, news):
            following.is_current = False

    def _replace(self, following: _Following, snapshot: PrefixSnapshot) -> None:
        if following.reading is not None:
            following.reading.cancel()
            following.reading = None
        following.late.clear()
        if len(snapshot.hashes) <= PIECE_HASHES:
            self._index.replace(following.worker, snapshot)
        else:
            following.reading = asyncio.create_task(self._read(following, snapshot))

    async def _read(self, following: _Following, snapshot: PrefixSnapshot) -> None:
        """A large snapshot takes long: requests have their turn between its pieces."""
        for _ in self._index.replacing(following.worker, snapshot):
            await asyncio.sleep(0)
        late, following.late, following.reading = following.late, [], None
        for batch in late:
            if not self._index.apply(following.worker, batch):
                following.is_current = False

    def _forget(self, name: str) -> None:
        following = self._following.pop(name)
        following.cancel()
        self._index.forget(following.worker)


def _keeps_prefixes(member: Member[Any]) -> bool:
    """Whether it has said so and answers; a life that has not said anything yet is asked with its first status."""
    status = member.status
    is_of_this_life = status.worker.incarnation == member.description.worker.incarnation
    return member.is_healthy and is_of_this_life and status.HasField("prefix_cache")


def _distinct(layouts: Iterable[KvLayout]) -> tuple[KvLayout, ...]:
    return tuple(dict.fromkeys(layouts))
