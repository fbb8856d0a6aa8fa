"""Where requests are planned, so that none holds up the event loop: a short one at once, others in threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

SHORT_BYTES = 2048
"""Up to this length, parsing, templates and tokenisation together are fast enough for the event loop's own thread."""
NUM_SCHEMA_THREADS = 2
"""A schema of 2 KiB may take long to check. Those that do hold up each other, and no other requests."""

Result = TypeVar("Result")


class Planners:
    """The threads of one router. They end with the process, or by themselves when nobody needs them."""

    def __init__(self) -> None:
        self._schema_threads = ThreadPoolExecutor(NUM_SCHEMA_THREADS, "schemas")

    async def run(self, num_bytes: int, work: Callable[[], Result], *, has_schema: bool = False) -> Result:
        """Does `work`, whose cost grows with the request's `num_bytes`, or not only with them when it has a schema."""
        if has_schema:
            return await asyncio.get_running_loop().run_in_executor(self._schema_threads, work)
        if num_bytes <= SHORT_BYTES:
            return work()
        return await asyncio.to_thread(work)
