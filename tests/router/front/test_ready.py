"""A stream read with pauses where it has nothing ready."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from router.front.ready import MAX_ITEMS_TOGETHER, PausingReader

FOREVER_S = 3600.0


class Source:
    """Numbers that are ready at once; a None in `script` is a wait for `release`. Keeps what happened, in order."""

    def __init__(self, script: list[int | None]) -> None:
        self.script = script
        self.release = asyncio.Event()
        self.events: list[str] = []
        self.limit_s: float | None = None

    async def numbers(self) -> AsyncGenerator[int, None]:
        """The stream."""
        try:
            for step in self.script:
                if step is not None:
                    yield step
                    continue
                self.events.append("waits")
                async with asyncio.timeout(self.limit_s):
                    await self.release.wait()
        except asyncio.CancelledError:
            self.events.append("cancelled")
            await asyncio.sleep(0)
            self.events.append("cleaned up")
            raise

    async def pause(self) -> None:
        """A pause that lets the stream go on."""
        self.events.append("pause")
        self.release.set()

    async def endless_pause(self) -> None:
        """A pause that only a cancellation ends."""
        self.events.append("pause")
        await asyncio.sleep(FOREVER_S)

    async def failing_pause(self) -> None:
        """A pause that fails."""
        raise ZeroDivisionError


async def test_it_pauses_only_before_waits() -> None:
    """Every item comes, in order; the stream has begun to wait when the pause begins."""
    source = Source([1, 2, None, 3, 4])
    async with aclosing(source.numbers()) as numbers:
        async for number in PausingReader(numbers, source.pause):
            source.events.append(str(number))
    assert source.events == ["1", "2", "waits", "pause", "3", "4"]


async def test_the_wait_goes_on_after_the_pause() -> None:
    """An item that comes only after the pause is still awaited."""
    source = Source([None, 1])

    async def pause() -> None:
        asyncio.get_running_loop().call_soon(source.release.set)

    assert [number async for number in PausingReader(source.numbers(), pause)] == [1]


async def test_many_items_in_a_row_are_paused_between() -> None:
    """A stream that never waits is paused all the same."""
    source = Source(list(range(2 * MAX_ITEMS_TOGETHER + 1)))
    seen = [number async for number in PausingReader(source.numbers(), source.pause)]
    assert seen == source.script
    assert source.events == ["pause", "pause"]


async def test_a_cancellation_within_a_pause_reaches_the_stream() -> None:
    """The stream cleans up before the reader's task ends."""
    source = Source([None])
    reading = asyncio.ensure_future(anext(PausingReader(source.numbers(), source.endless_pause)))
    await asyncio.sleep(0)
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert source.events == ["waits", "pause", "cancelled", "cleaned up"]


async def test_a_pause_that_fails_cancels_the_wait() -> None:
    """The reader raises the pause's error, after the stream's clean-up."""
    source = Source([None])
    with pytest.raises(ZeroDivisionError):
        await anext(PausingReader(source.numbers(), source.failing_pause))
    assert source.events == ["waits", "cancelled", "cleaned up"]


async def test_a_timeout_of_the_stream_ends_a_pause() -> None:
    """It is raised as if the stream had been waited for, and the task is not left cancelled."""
    source = Source([None])
    source.limit_s = 0.0
    with pytest.raises(TimeoutError):
        await anext(PausingReader(source.numbers(), source.endless_pause))
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


@pytest.mark.parametrize("has_waited", [False, True])
async def test_an_error_of_the_stream_is_raised(has_waited: bool) -> None:
    """Whether the stream waited before it or not."""
    source = Source([])

    async def failing() -> AsyncGenerator[int, None]:
        if has_waited:
            await source.release.wait()
        raise ZeroDivisionError
        yield 1

    with pytest.raises(ZeroDivisionError):
        await anext(PausingReader(failing(), source.pause))
    assert source.events == ["pause"] * has_waited
