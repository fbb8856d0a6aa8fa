"""A worker's end of a router's stream, without a wire: news of what is cached are bounded, and pass no token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from protocol import kvferry_worker_pb2 as pb
from protocol import order_session
from protocol.order_session import Context, OrderSession
from protocol.prefix import HASH_BYTES
from protocol.prefix_events import BlocksStored, EventBatch, PrefixSnapshot
from protocol.prefix_wire import MAX_PART_HASHES, NewsReader
from protocol.rpc_server import MAX_MESSAGE_BYTES
from protocol.unsent_news import MAX_TOGETHER_BYTES, UnsentNews

PART_BYTES = MAX_PART_HASHES * HASH_BYTES


class _Metadata:
    """The side of a call that the session writes its metadata to."""

    async def send_initial_metadata(self, _metadata: Any) -> None:
        return None


async def _silence() -> AsyncIterator[pb.OrderBatch]:
    """A router that orders nothing."""
    await asyncio.Event().wait()
    yield pb.OrderBatch()


def _session() -> OrderSession:
    return OrderSession("router-1", lambda _session, _order: None)


def _snapshot(num_hashes: int) -> PrefixSnapshot:
    return PrefixSnapshot(7, tuple(number.to_bytes(HASH_BYTES, "little") for number in range(num_hashes)))


def _told(deliveries: list[pb.Delivery]) -> list[PrefixSnapshot | EventBatch]:
    reader = NewsReader()
    news = [reader.take(message) for delivery in deliveries for message in delivery.prefix]
    return [one for one in news if one is not None]


def test_a_large_snapshot_comes_in_many_small_deliveries() -> None:
    """What a step produced meanwhile comes with the next of them, and the snapshot arrives whole, before what follows it."""
    snapshot, events = _snapshot(5 * MAX_PART_HASHES), EventBatch(7, (BlocksStored(None, (b"x" * HASH_BYTES,)),))

    async def run() -> list[pb.Delivery]:
        session = _session()
        session.deliver_prefixes(snapshot)
        session.deliver_prefixes(events)
        served = session.serve(_silence(), cast(Context, _Metadata()))
        deliveries = [await anext(served)]
        session.deliver(lambda delivery: delivery.tokens.append(pb.Token(index=1)))
        await asyncio.sleep(0)  # a turn, as every write takes
        while len(_told(deliveries)) < 2:
            deliveries.append(await anext(served))
        await cast(Any, served).aclose()
        return deliveries

    deliveries = asyncio.run(run())
    assert _told(deliveries) == [snapshot, events]
    assert max(one.ByteSize() for one in deliveries) < 2 * MAX_TOGETHER_BYTES + PART_BYTES < MAX_MESSAGE_BYTES
    assert [number for number, one in enumerate(deliveries) if one.tokens] == [1]


def test_a_router_that_reads_slowly_misses_news_and_keeps_its_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept for it is bounded; numbers are missing then, so that it can ask again, and tokens are not lost."""
    monkeypatch.setattr(order_session, "UnsentNews", lambda: UnsentNews(max_bytes=200))

    async def run() -> list[pb.Delivery]:
        session = _session()
        for number in range(50):
            session.deliver_prefixes(EventBatch(number, (BlocksStored(None, (b"x" * HASH_BYTES,)),)))
        session.deliver_prefixes(_snapshot(100))
        session.deliver(lambda delivery: delivery.tokens.append(pb.Token(index=1)))
        served = session.serve(_silence(), cast(Context, _Metadata()))
        deliveries = [await anext(served)]
        while not any(one.tokens for one in deliveries):
            deliveries.append(await anext(served))
        session.deliver_prefixes(EventBatch(50, ()))
        deliveries.append(await anext(served))
        await cast(Any, served).aclose()
        return deliveries

    numbers = [one.first_number for one in _told(asyncio.run(run())) if isinstance(one, EventBatch)]
    assert numbers[:3] == [0, 1, 2]
    assert len(numbers) < 10
    assert numbers[-1] == 50


def test_what_has_no_room_is_dropped_as_a_whole() -> None:
    """No part of a snapshot is kept without the others, and room comes back as messages are sent."""
    unsent = UnsentNews(max_bytes=100)
    message = pb.PrefixNews(snapshot=pb.PrefixSnapshotPart(hashes=b"x" * 40))
    assert not unsent.add([message, message, message])
    assert not unsent
    assert unsent.add([message, message])
    assert not unsent.add([message])
    delivery = pb.Delivery()
    unsent.move_to(delivery)
    assert len(delivery.prefix) == 2
    assert unsent.add([message, message])
