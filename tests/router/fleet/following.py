"""A fleet of connections on which a test tells the news of prefix caches, and what a router knows of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from protocol import kvferry_worker_pb2 as pb
from protocol.errors import WorkerUnavailable
from protocol.layout import KvLayout
from protocol.prefix import HashChain, PrefixIdentity
from protocol.wire_rule import WireCodec, WireOffer, WireRule
from router.fleet.cached_prefixes import CachedPrefixes
from router.fleet.clients import PrefixNews
from router.fleet.member import Member
from tests.router.fleet.members import LAYOUT, member, request
from tests.support.clock import FakeClock

LOSSY = WireRule(WireCodec.CHANNEL, 0.5)
ASKED = request(1000)
BLOCK = LAYOUT.block_size


class FollowedClient:
    """A worker's connection on which a test tells the news; `failure` is what an attempt to follow ends with."""

    def __init__(self) -> None:
        self.asked: list[Callable[[PrefixNews], None]] = []
        self.failure: WorkerUnavailable | None = None
        self.is_stuck = False

    async def follow_prefixes(self, on_news: Callable[[PrefixNews], None]) -> None:
        self.asked.append(on_news)
        if self.is_stuck:
            await asyncio.Event().wait()
        if self.failure is not None:
            raise self.failure

    def tell(self, news: PrefixNews) -> None:
        """To whoever asked last."""
        self.asked[-1](news)


class Fleet:
    """Members with such connections, and what is known of them."""

    def __init__(self, max_blocks: int = 1000) -> None:
        self.clock = FakeClock()
        self.known = CachedPrefixes(self.clock, max_blocks)
        self.prefills: list[Member[Any]] = []
        self.decodes: list[Member[Any]] = []

    def add(self, name: str, layout: KvLayout = LAYOUT, *, keeps: bool = True) -> FollowedClient:
        """A worker that is here and healthy."""
        role = name.split("-")[0]
        one = member(name, role, layout)
        client = one.client = FollowedClient()
        one.status = pb.WorkerStatus(
            worker=pb.WorkerId(name=name, incarnation="1"),
            prefix_cache=pb.PrefixCacheStatus() if keeps else None,
        )
        (self.prefills if role == "prefill" else self.decodes).append(one)
        return client

    async def look(self, after_s: float = 0.0) -> None:
        """One round, and a turn for those that are asked."""
        self.clock.advance(after_s)
        self.known.look_after(self.prefills, self.decodes)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    def read(self) -> dict[str, int]:
        """Tokens that need not be computed."""
        return dict(self.known.cached_tokens(ASKED, WireOffer()).read)


def names(num_blocks: int, layout: KvLayout = LAYOUT, precision: str = "exact", salt: str = "") -> tuple[bytes, ...]:
    """The first blocks of the prompt."""
    identity = PrefixIdentity(
        layout.model_fingerprint, layout.dtype, layout.block_size, wire_precision=precision, cache_salt=salt
    )
    return tuple(HashChain(identity, ASKED.prompt_token_ids[: num_blocks * layout.block_size]).hashes)


def run(work: Callable[[Fleet], Coroutine[Any, Any, None]], max_blocks: int = 1000) -> None:
    """With an empty fleet, closed afterwards."""

    async def whole() -> None:
        fleet = Fleet(max_blocks)
        try:
            await work(fleet)
        finally:
            await fleet.known.close()

    asyncio.run(whole())
