"""Followers of a prefix cache: a snapshot first, then every event once, whatever the cache does between."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.block_pool import BlockPool, BlockTable
from engine.prefix_cache import news
from engine.prefix_cache.cache import PrefixCache
from engine.prefix_cache.news import PrefixNews
from protocol.layout import KvDtype
from protocol.prefix import HashChain, PrefixIdentity
from protocol.prefix_events import BlocksEvicted, BlocksStored, EventBatch, PrefixSnapshot

BLOCK = 2
IDENTITY = PrefixIdentity("model", KvDtype.FLOAT32, BLOCK)


class Serving:
    """A cache of 8 blocks whose log holds few events, and what a follower heard of it."""

    def __init__(self) -> None:
        self.pool = BlockPool(8)
        self.cache = PrefixCache(self.pool, BLOCK, max_event_hashes=12)
        self.news = PrefixNews(self.cache)
        self.heard: list[PrefixSnapshot | EventBatch] = []

    def serve(self, *token_ids: int) -> list[bytes]:
        """Names of the blocks of a prompt, which are kept."""
        hashes = HashChain(IDENTITY, token_ids).hashes
        table = BlockTable(self.pool, BLOCK, self.cache.match(hashes, len(token_ids)))
        table.ensure(len(token_ids))
        self.cache.insert(hashes, table.block_ids, 0, len(hashes))
        table.release()
        return hashes

    def known(self) -> set[bytes]:
        """What a follower that misses nothing knows."""
        found: set[bytes] = set()
        next_number: int | None = None
        for one in self.heard:
            if isinstance(one, PrefixSnapshot):
                found, next_number = set(one.hashes), one.next_number
                continue
            assert one.first_number == next_number
            next_number = one.next_number
            for event in one.events:
                if isinstance(event, BlocksStored):
                    found |= {*event.hashes}
                elif isinstance(event, BlocksEvicted):
                    found -= {*event.hashes}
                else:
                    found.clear()
        return found


def test_a_snapshot_comes_first_and_then_what_happened_since() -> None:
    """And nothing when nothing happened."""
    one = Serving()
    first = one.serve(1, 2, 3, 4)
    one.news.publish()
    one.news.follow("router", one.heard.append)
    one.news.publish()
    assert one.heard == [PrefixSnapshot(1, tuple(first))]
    one.news.publish()
    second = one.serve(5, 6)
    one.news.publish()
    assert one.heard[1:] == [EventBatch(1, (BlocksStored(None, tuple(second)),))]


def test_more_than_the_log_holds_is_a_snapshot_again() -> None:
    """What happened in one step can be more than is kept of the past."""
    one = Serving()
    one.news.follow("router", one.heard.append)
    one.news.publish()
    for token in range(10):
        one.serve(token, token)
    one.news.publish()
    assert [type(told) for told in one.heard] == [PrefixSnapshot, PrefixSnapshot]
    assert one.known() == {*one.cache.snapshot().hashes}


def test_following_again_begins_anew_for_one_router_only() -> None:
    """As after a stream that broke: the old delivery is told no more, and ending it ends nothing."""
    one = Serving()
    other: list[PrefixSnapshot | EventBatch] = []
    again: list[PrefixSnapshot | EventBatch] = []
    old = one.heard.append
    one.news.follow("router", old)
    one.news.follow("other", other.append)
    one.news.publish()
    one.news.follow("router", again.append)
    one.news.unfollow("router", old)
    one.news.unfollow("stranger", old)
    one.serve(1, 2)
    one.news.publish()
    assert [type(told) for told in one.heard] == [PrefixSnapshot]
    assert [type(told) for told in other] == [PrefixSnapshot, EventBatch]
    assert [type(told) for told in again] == [PrefixSnapshot]


def test_whoever_ended_it_is_told_nothing() -> None:
    """From the next step on."""
    one = Serving()
    one.news.follow("router", one.heard.append)
    one.news.unfollow("router", one.heard.append)
    one.serve(1, 2)
    one.news.publish()
    assert one.heard == []


def test_a_snapshot_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """It names the first blocks, of which none is without its predecessor."""
    monkeypatch.setattr(news, "MAX_SNAPSHOT_HASHES", 2)
    one = Serving()
    hashes = one.serve(1, 2, 3, 4, 5, 6)
    one.news.follow("router", one.heard.append)
    one.news.publish()
    assert one.heard == [PrefixSnapshot(1, tuple(hashes[:2]))]


@given(st.lists(st.one_of(st.none(), st.lists(st.integers(0, 1), min_size=2, max_size=14)), max_size=30))
def test_a_follower_knows_what_is_cached(steps: list[list[int] | None]) -> None:
    """After each step of any prompts, evictions and clearings among them."""
    one = Serving()
    one.news.follow("router", one.heard.append)
    for prompt in steps:
        if prompt is None:
            one.cache.clear()
        else:
            one.serve(*prompt)
        one.news.publish()
        assert one.known() == {*one.cache.snapshot().hashes}
