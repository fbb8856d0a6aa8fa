"""The events of a generation one by one, however they were ready together."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

from router.generation import GenerationEvent


async def events_of(
    batches: AsyncGenerator[Sequence[GenerationEvent], None],
) -> AsyncGenerator[GenerationEvent, None]:
    """All events in order. Closing this closes the generation."""
    async with aclosing(batches):
        async for batch in batches:
            for event in batch:
                yield event
