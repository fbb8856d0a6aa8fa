"""What a router knows of its workers' prefix caches: asked for when it has to be, not more often, and right or forgotten."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Coroutine
from dataclasses import replace
from typing import Any

from protocol import kvferry_worker_pb2 as pb
from protocol.errors import WorkerUnavailable
from protocol.ids import WorkerId
from protocol.layout import KvDtype, KvLayout
from protocol.prefix import HashChain, PrefixIdentity, wire_precision
from protocol.prefix_events import BlocksEvicted, BlocksStored, EventBatch, PrefixSnapshot
from protocol.wire_rule import LOSSLESS, WireCodec, WireOffer, WireRule
from router.fleet import cached_prefixes
from router.fleet.cached_prefixes import LEAST_WAIT_S, MOST_WAIT_S, CachedPrefixes
from router.fleet.cached_tokens import NOTHING_CACHED
from router.fleet.clients import PrefixNews
from router.fleet.member import MAX_MISSED_PINGS, Member
from router.fleet.prefix_index import PIECE_HASHES
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


def test_events_keep_up_what_a_snapshot_began() -> None:
    """A worker that joined is asked once; one that keeps no prefixes never."""

    async def work(fleet: Fleet) -> None:
        one, none = fleet.add("prefill-0"), fleet.add("decode-0", keeps=False)
        assert fleet.known.cached_tokens(ASKED, WireOffer()) is NOTHING_CACHED
        await fleet.look()
        one.tell(PrefixSnapshot(0, names(2)))
        assert fleet.read() == {"prefill-0": 2 * BLOCK}
        one.tell(EventBatch(0, (BlocksStored(names(2)[1], names(9)[2:]),)))
        assert fleet.read() == {"prefill-0": 9 * BLOCK}
        one.tell(EventBatch(1, (BlocksEvicted(names(9)[4:]),)))
        assert fleet.read() == {"prefill-0": 4 * BLOCK}
        await fleet.look(100.0)
        assert (len(one.asked), len(none.asked)) == (1, 0)

    run(work)


def test_missing_events_are_made_good_by_a_snapshot() -> None:
    """What was known stays meanwhile; late events of the gap change nothing."""

    async def work(fleet: Fleet) -> None:
        one = fleet.add("prefill-0")
        await fleet.look()
        one.tell(PrefixSnapshot(0, names(2)))
        one.tell(EventBatch(5, (BlocksStored(names(2)[1], names(3)[2:]),)))
        one.tell(EventBatch(6, (BlocksEvicted(names(2)),)))
        assert fleet.read() == {"prefill-0": 2 * BLOCK}
        await fleet.look(LEAST_WAIT_S)
        assert len(one.asked) == 2
        one.tell(PrefixSnapshot(7, names(5)))
        assert fleet.read() == {"prefill-0": 5 * BLOCK}
        await fleet.look(100.0)
        assert len(one.asked) == 2

    run(work)


def test_a_stream_that_broke_is_followed_anew() -> None:
    """As is one whose news were not understood."""

    async def work(fleet: Fleet) -> None:
        one = fleet.add("prefill-0")
        await fleet.look()
        one.tell(PrefixSnapshot(0, names(2)))
        one.tell(None)
        await fleet.look(100.0)
        assert len(one.asked) == 2

    run(work)


def test_a_worker_is_not_asked_in_a_loop() -> None:
    """Whether it cannot be asked, never answers, or answers and misses events again: once in a time that doubles to a bound."""

    async def work(fleet: Fleet) -> None:
        gone, silent, lossy = fleet.add("prefill-0"), fleet.add("prefill-1"), fleet.add("prefill-2")
        gone.failure = WorkerUnavailable("gone")
        asked_at: list[float] = []
        start = fleet.clock.now
        for _ in range(600):
            await fleet.look(1.0)
            if len(lossy.asked) > len(asked_at):
                asked_at.append(fleet.clock.now - start)
                lossy.tell(PrefixSnapshot(0, ()))
                lossy.tell(EventBatch(9, ()))
        gaps = [later - earlier for earlier, later in itertools.pairwise(asked_at)]
        assert gaps[:5] == [LEAST_WAIT_S, 2 * LEAST_WAIT_S, 4 * LEAST_WAIT_S, 8 * LEAST_WAIT_S, MOST_WAIT_S]
        assert set(gaps[5:]) == {MOST_WAIT_S}
        assert len(gone.asked) == len(silent.asked) == len(lossy.asked)

    run(work)


def test_a_stream_that_does_not_open_keeps_nobody_waiting() -> None:
    """The round goes on, nothing is asked twice at once, and the end of the fleet ends it."""

    async def work(fleet: Fleet) -> None:
        stuck, one = fleet.add("prefill-0"), fleet.add("prefill-1")
        stuck.is_stuck = True
        for _ in range(3):
            await fleet.look(100.0)
        one.tell(PrefixSnapshot(0, names(1)))
        assert len(stuck.asked) == 1
        assert fleet.read() == {"prefill-1": BLOCK}

    run(work)


def test_another_life_knows_nothing_and_is_asked_at_once() -> None:
    """What its former life still says is not heard."""

    async def work(fleet: Fleet) -> None:
        one = fleet.add("prefill-0")
        await fleet.look()
        one.tell(PrefixSnapshot(0, names(3)))
        (kept,) = fleet.prefills
        kept.status = pb.WorkerStatus(
            worker=pb.WorkerId(name="prefill-0", incarnation="2"), prefix_cache=pb.PrefixCacheStatus()
        )
        kept.description = replace(kept.description, worker=WorkerId("prefill-0", "2"))
        await fleet.look(1.0)
        assert fleet.read() == {}
        assert fleet.known.num_blocks == 0
        assert len(one.asked) == 2
        one.asked[0](PrefixSnapshot(0, names(3)))
        assert fleet.read() == {}
        one.tell(PrefixSnapshot(0, names(1)))
        assert fleet.read() == {"prefill-0": BLOCK}

    run(work)


def test_who_does_not_answer_is_forgotten_until_it_does() -> None:
    """Its blocks take no room meanwhile."""

    async def work(fleet: Fleet) -> None:
        one = fleet.add("prefill-0")
        await fleet.look()
        one.tell(PrefixSnapshot(0, names(3)))
        fleet.prefills[0].num_missed_pings = MAX_MISSED_PINGS
        await fleet.look(1.0)
        assert fleet.known.num_blocks == 0
        fleet.prefills[0].num_missed_pings = 0
        await fleet.look(1.0)
        one.tell(PrefixSnapshot(4, names(2)))
        assert fleet.read() == {"prefill-0": 2 * BLOCK}

    run(work)


def test_what_is_known_is_bounded() -> None:
    """By the blocks of all workers together."""

    async def work(fleet: Fleet) -> None:
        clients = [fleet.add(f"prefill-{number}") for number in range(3)]
        await fleet.look()
        for number, one in enumerate(clients):
            salted = names(20, salt=str(number))
            one.tell(PrefixSnapshot(0, salted))
            one.tell(EventBatch(0, (BlocksStored(None, names(20, salt=f"more {number}")),)))
        assert fleet.known.num_blocks == 30

    run(work, max_blocks=30)


def test_a_large_snapshot_is_taken_over_in_turns() -> None:
    """Events that come meanwhile are applied after it, a newer snapshot takes its place, and a worker that goes ends it."""

    async def work(fleet: Fleet) -> None:
        one = fleet.add("prefill-0")
        await fleet.look()
        others = tuple(number.to_bytes(16, "big") for number in range(5 * PIECE_HASHES))
        one.tell(PrefixSnapshot(0, others))
        await asyncio.sleep(0)
        assert 0 < fleet.known.num_blocks < len(others)
        one.tell(PrefixSnapshot(0, (*names(2), *others)))
        one.tell(EventBatch(0, (BlocksStored(names(2)[1], names(3)[2:]),)))
        one.tell(EventBatch(1, (BlocksEvicted(others),)))
        for _ in range(20):
            await asyncio.sleep(0)
        assert fleet.known.num_blocks == 3
        assert fleet.read() == {"prefill-0": 3 * BLOCK}
        one.tell(PrefixSnapshot(0, others))
        await asyncio.sleep(0)
        fleet.prefills.clear()
        await fleet.look()
        assert fleet.known.num_blocks == 0

    run(work, max_blocks=100_000)


def test_a_prompt_is_hashed_only_as_far_as_somebody_has_it(monkeypatch: Any) -> None:
    """One block when nobody has it; at most twice of what is found; once for all workers with equal KV."""
    hashed: list[int] = []

    class CountedChain(HashChain):
        __slots__ = ()

        def extend(self, token_ids: Any) -> None:
            before = len(self.hashes)
            super().extend(token_ids)
            hashed.append(len(self.hashes) - before)

    monkeypatch.setattr(cached_prefixes, "HashChain", CountedChain)

    async def work(fleet: Fleet) -> None:
        clients = [fleet.add("prefill-0"), fleet.add("prefill-1"), fleet.add("decode-0")]
        await fleet.look()
        clients[0].tell(PrefixSnapshot(0, names(1, salt="another")))
        hashed.clear()
        assert fleet.read() == {}
        assert sum(hashed) == 1
        clients[1].tell(PrefixSnapshot(0, names(5)))
        clients[2].tell(PrefixSnapshot(0, names(9)))
        hashed.clear()
        assert fleet.read() == {"prefill-1": 5 * BLOCK, "decode-0": 9 * BLOCK}
        assert sum(hashed) <= 18

    run(work)


def test_a_last_token_is_always_read() -> None:
    """However much is cached."""

    async def work(fleet: Fleet) -> None:
        one = fleet.add("prefill-0")
        await fleet.look()
        one.tell(PrefixSnapshot(0, names(4)))
        short = replace(ASKED, prompt_token_ids=ASKED.prompt_token_ids[: 4 * BLOCK])
        assert fleet.known.cached_tokens(short, WireOffer()).read == {"prefill-0": 3 * BLOCK}

    run(work)


def test_kv_that_landed_lossily_serves_only_such_requests() -> None:
    """And what a worker computed itself does not spare the wire for one that is to land lossily."""

    async def work(fleet: Fleet) -> None:
        fleet.add("prefill-0")
        decode = fleet.add("decode-0")
        await fleet.look()
        lossy = names(6, precision=wire_precision(LOSSY, KvDtype.FLOAT16, KvDtype.FLOAT16))
        decode.tell(PrefixSnapshot(0, (*names(2), *lossy)))
        exact = fleet.known.cached_tokens(ASKED, WireOffer(LOSSLESS))
        assert exact.read == exact.landed_from_any() == {"decode-0": 2 * BLOCK}
        offered = fleet.known.cached_tokens(ASKED, WireOffer(LOSSY))
        assert offered.read == {"decode-0": 2 * BLOCK}
        assert offered.landed_from_any() == {"decode-0": 6 * BLOCK}
        own = replace(ASKED, kv_wire_budget=1.0)
        assert fleet.known.cached_tokens(own, WireOffer(LOSSY)).landed_from_any() == {"decode-0": 2 * BLOCK}

    run(work)


def test_scores_are_read_anew_but_need_not_land_anew() -> None:
    """Whoever reads the prompt computes all of it; its KV may be there all the same."""

    async def work(fleet: Fleet) -> None:
        prefill, decode = fleet.add("prefill-0"), fleet.add("decode-0")
        await fleet.look()
        for one in (prefill, decode):
            one.tell(PrefixSnapshot(0, names(2)))
        cached = fleet.known.cached_tokens(replace(ASKED, num_prompt_logprobs=1), WireOffer())
        assert cached.read == {}
        assert cached.landed_from_any()["decode-0"] == 2 * BLOCK

    run(work)


def test_salts_share_nothing() -> None:
    """A prompt with a salt finds only what was cached with it."""

    async def work(fleet: Fleet) -> None:
        one = fleet.add("prefill-0")
        await fleet.look()
        one.tell(PrefixSnapshot(0, (*names(2), *names(5, salt="tenant"))))
        salted = fleet.known.cached_tokens(replace(ASKED, cache_salt="tenant"), WireOffer())
        assert salted.read == {"prefill-0": 5 * BLOCK}
        assert fleet.read() == {"prefill-0": 2 * BLOCK}

    run(work)


def test_senders_of_two_types_spare_what_both_would() -> None:
    """What a decode worker has as one of them would send it may have to cross again from the other."""

    async def work(fleet: Fleet) -> None:
        wide = replace(LAYOUT, dtype=KvDtype.FLOAT32)
        fleet.add("prefill-0")
        fleet.add("prefill-1", wide)
        decode = fleet.add("decode-0", wide)
        await fleet.look()
        decode.tell(PrefixSnapshot(0, names(4, wide)))
        cached = fleet.known.cached_tokens(ASKED, WireOffer())
        assert cached.landed == {KvDtype.FLOAT32: {"decode-0": 4 * BLOCK}}
        assert cached.landed_from_any() == {"decode-0": 4 * BLOCK}

    run(work)
