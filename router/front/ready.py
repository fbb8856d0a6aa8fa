"""Reads a stream item by item and notices when the next one is not there yet. Knows nothing of what the items are."""

from __future__ import annotations

import types
from asyncio import CancelledError
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import Any, Generic, Self, TypeVar

MAX_ITEMS_TOGETHER = 64

Item = TypeVar("Item")


class PausingReader(Generic[Item]):
    """The items of `stream`, for `async for`.

    `pause` is awaited before each wait for an item that is not ready, while the stream is already at work on it, and after
    `MAX_ITEMS_TOGETHER` items without a wait. When `pause` fails or is cancelled, the stream's wait is cancelled, and
    what `pause` raised is raised once the stream has cleaned up; but an error of the stream's own, such as the timeout
    that was the reason, goes before it.
    """

    def __init__(self, stream: AsyncGenerator[Item, None], pause: Callable[[], Awaitable[None]]) -> None:
        self._stream = stream
        self._pause = pause
        self._num_together = 0

    def __aiter__(self) -> Self:
        """Itself."""
        return self

    @types.coroutine
    def __anext__(self) -> Generator[Any, Any, Item]:
        """The next item."""
        if self._num_together == MAX_ITEMS_TOGETHER:
            self._num_together = 0
            yield from self._pause().__await__()
        self._num_together += 1
        # The first step is taken by hand: if it ends, the item was ready; else it says what it waits for.
        step = anext(self._stream).__await__()
        try:
            awaited = step.send(None)
        except StopIteration as ready:
            item: Item = ready.value
            return item
        self._num_together = 0
        try:
            yield from self._pause().__await__()
        except BaseException as failure:
            yield from _cancelled(step, failure if isinstance(failure, CancelledError) else CancelledError())
            raise
        return (yield from _rest(step, awaited))


def _rest(step: Generator[Any, Any, Item], awaited: Any) -> Generator[Any, Any, Item]:
    """Goes on with a step that waits for `awaited`."""
    try:
        while True:
            try:
                value = yield awaited
            except BaseException as thrown:  # noqa: BLE001 - it is for the stream, not for us
                awaited = step.throw(thrown)
            else:
                awaited = step.send(value)
    except StopIteration as done:
        item: Item = done.value
        return item


def _cancelled(step: Generator[Any, Any, Item], reason: CancelledError) -> Generator[Any, Any, None]:
    """Ends a step that waits as cancelling its task would."""
    try:
        yield from _rest(step, step.throw(reason))
    except (StopIteration, StopAsyncIteration, CancelledError):
        return
