"""Several asynchronous streams as one, in the order in which their items come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TypeVar

Item = TypeVar("Item")


async def merge(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """All items. The first error of a stream ends the others and is raised; closing this closes all streams."""
    queue: asyncio.Queue[Item] = asyncio.Queue(1)  # a reader that is slow slows the streams down

    async def drain(stream: AsyncGenerator[Item, None]) -> None:
        async with aclosing(stream):
            async for item in stream:
                await queue.put(item)

    tasks = {asyncio.create_task(drain(stream)) for stream in streams}
    getting = asyncio.ensure_future(queue.get())
    try:
        while tasks or not queue.empty() or getting.done():
            done, _ = await asyncio.wait({getting, *tasks}, return_when=asyncio.FIRST_COMPLETED)
            if getting in done:
                item = getting.result()
                getting = asyncio.ensure_future(queue.get())
                yield item
                continue
            for task in done:
                tasks.discard(task)
                task.result()
    finally:
        for task in (getting, *tasks):
            task.cancel()
        await asyncio.gather(getting, *tasks, return_exceptions=True)
