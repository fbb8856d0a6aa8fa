"""Several streams as one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from protocol.errors import WorkerUnavailable
from router.fleet.merge import merge


class Stream:
    """Yields items, then ends, fails or hangs; remembers whether it was closed."""

    def __init__(self, items: list[int], error: Exception | None = None, *, hangs: bool = False) -> None:
        self._items = items
        self._error = error
        self._hangs = hangs
        self.is_closed = False

    async def run(self) -> AsyncGenerator[int, None]:
        try:
            for item in self._items:
                yield item
                await asyncio.sleep(0)
            if self._error is not None:
                raise self._error
            if self._hangs:
                await asyncio.Event().wait()
        finally:
            self.is_closed = True


async def test_all_items_come_those_of_a_stream_in_order() -> None:
    """Nothing is lost, doubled or reordered within a stream."""
    streams = [Stream(list(range(first, first + 20))) for first in (0, 100, 200)]
    merged = [item async for item in merge([one.run() for one in streams])]
    assert sorted(merged) == [*range(20), *range(100, 120), *range(200, 220)]
    for first in (0, 100, 200):
        assert [item for item in merged if first <= item < first + 100] == list(range(first, first + 20))


async def test_an_error_ends_the_others_and_is_raised() -> None:
    """What came before is given out; streams that hang are closed."""
    failing, hanging = Stream([1], WorkerUnavailable("gone")), Stream([2], hangs=True)
    merged = merge([failing.run(), hanging.run()])
    seen = [await anext(merged), await anext(merged)]
    with pytest.raises(WorkerUnavailable, match="gone"):
        await anext(merged)
    assert sorted(seen) == [1, 2]
    assert hanging.is_closed


async def test_closing_it_closes_all_streams() -> None:
    """Also those that hang."""
    streams = [Stream([1], hangs=True), Stream([2], hangs=True)]
    async with aclosing(merge([one.run() for one in streams])) as merged:
        async for _ in merged:
            break
    assert all(one.is_closed for one in streams)


async def test_nothing_to_merge_ends_at_once() -> None:
    """No stream, no item."""
    none: list[AsyncGenerator[int, None]] = []
    assert [item async for item in merge(none)] == []
