"""Which thread plans which request."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import pytest

from router.front.planners import LONG_BYTES, NICENESS, SHORT_BYTES, Planners

WAIT_S = 10.0


async def test_a_short_request_is_planned_in_the_loops_thread() -> None:
    """It is done when the call returns, without a switch of threads."""
    assert await Planners().run(SHORT_BYTES, threading.get_ident) == threading.get_ident()


async def test_longer_ones_have_a_thread_by_their_size() -> None:
    """One for all of a size, another for the longest, and others for those with schemas, short as they may be."""
    planners = Planners()
    used = [
        await planners.run(num_bytes, threading.get_ident)
        for num_bytes in (SHORT_BYTES + 1, LONG_BYTES, LONG_BYTES + 1, 100 * LONG_BYTES)
    ]
    schema_thread = await planners.run(1, threading.get_ident, has_schema=True)
    assert used[0] == used[1]
    assert used[2] == used[3]
    assert len({threading.get_ident(), used[0], used[2], schema_thread}) == 4


async def test_the_longest_do_not_hold_up_others() -> None:
    """While one is planned, shorter ones and those with schemas are."""
    planners = Planners()
    release = threading.Event()
    long = asyncio.ensure_future(planners.run(LONG_BYTES + 1, lambda: release.wait(WAIT_S)))
    assert await planners.run(LONG_BYTES, lambda: "planned") == "planned"
    assert await planners.run(LONG_BYTES, lambda: "planned", has_schema=True) == "planned"
    release.set()
    assert await long


@pytest.mark.parametrize("num_bytes", [1, LONG_BYTES, LONG_BYTES + 1])
async def test_what_planning_raises_reaches_the_caller(num_bytes: int) -> None:
    """In whichever thread it is raised."""

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await Planners().run(num_bytes, fail)


@pytest.mark.skipif(sys.platform != "linux", reason="threads have priorities of their own on Linux alone")
@pytest.mark.parametrize("has_schema", [False, True])
async def test_the_threads_stand_back(has_schema: bool) -> None:
    """Their priority is lower than that of the loop, which keeps its own."""

    def niceness() -> int:
        return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    before = niceness()
    in_thread = await Planners().run(LONG_BYTES, niceness, has_schema=has_schema)
    assert in_thread == min(19, before + NICENESS)
    assert niceness() == before
