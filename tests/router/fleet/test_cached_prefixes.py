"""What a router knows of its workers' prefix caches: asked for when it has to be, not more often, and right or forgotten."""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace

from protocol import kvferry_worker_pb2 as pb
from protocol.errors import WorkerUnavailable
from protocol.ids import WorkerId
from protocol.prefix_events import BlocksEvicted, BlocksStored, EventBatch, PrefixSnapshot
from protocol.wire_rule import WireOffer
from router.fleet.cached_prefixes import LEAST_WAIT_S, MOST_WAIT_S
from router.fleet.cached_tokens import NOTHING_CACHED
from router.fleet.member import MAX_MISSED_PINGS
from router.fleet.prefix_index import PIECE_HASHES
from tests.router.fleet.following import ASKED, BLOCK, Fleet, names, run


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
