"""Where requests are planned, so that none holds up the event loop: a short one at once, others in threads.

The threads have a lower priority than the loop, and are few: each takes Python's lock from it now and then.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

LOG = logging.getLogger(__name__)
SHORT_BYTES = 2048
"""Up to this length, parsing, templates and tokenisation together are fast enough for the event loop's own thread."""
LONG_BYTES = 65536
"""Those that are longer do not hold up the others. One thread reads some 300,000 tokens a second, so that more would only
take time from the event loop."""
NUM_SCHEMA_THREADS = 2
"""A schema of 2 KiB may take long to check. Those that do hold up each other, and no other requests."""
NICENESS = 3
"""How far the threads stand back from the event loop where there are too few cores for both. Not far: a thread that other
processes keep from running may hold Python's lock meanwhile, for which the loop then waits."""

Result = TypeVar("Result")


class Planners:
    """The threads of one router. They end with the process, or by themselves when nobody needs them."""

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "requests", _stand_back)
        self._long_thread = ThreadPoolExecutor(1, "long-requests", _stand_back)
        self._schema_threads = ThreadPoolExecutor(NUM_SCHEMA_THREADS, "schemas", _stand_back)

    async def run(self, num_bytes: int, work: Callable[[], Result], *, has_schema: bool = False) -> Result:
        """Does `work`, whose cost grows with the request's `num_bytes`, or not only with them when it has a schema."""
        if num_bytes <= SHORT_BYTES and not has_schema:
            return work()
        threads = self._schema_threads if has_schema else self._threads_for(num_bytes)
        return await asyncio.get_running_loop().run_in_executor(threads, work)

    def _threads_for(self, num_bytes: int) -> ThreadPoolExecutor:
        return self._thread if num_bytes <= LONG_BYTES else self._long_thread


def _stand_back() -> None:
    """Lowers the priority of the calling thread, where threads have one of their own: on Linux."""
    if sys.platform != "linux":
        return
    thread = threading.get_native_id()
    try:
        os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, thread) + NICENESS)
    except OSError as error:
        LOG.warning("a thread for planning keeps the event loop's priority: %s", error)
