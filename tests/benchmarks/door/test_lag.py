"""The lag of an event loop."""

import asyncio
import time

from benchmarks.door.lag import STALL_S, LagProbe, summarise_lags


def _block(duration_s: float) -> None:
    end = time.monotonic() + duration_s
    while time.monotonic() < end:
        pass


async def test_a_call_that_blocks_is_named() -> None:
    """The worst lag is at least the block, and one of the places is the function that blocked."""
    probe = LagProbe()
    task = asyncio.create_task(probe.run())
    await asyncio.sleep(0)
    _block(10 * STALL_S)
    await asyncio.sleep(2 * STALL_S)
    report = probe.take()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert report.max_lag_s >= 9 * STALL_S
    assert report.num_stalls >= 1
    assert any("_block" in place and place.startswith("loop: ") for place in report.places)


def test_lags_are_summed_up() -> None:
    """The worst with its own processor time, the most processor time of any, and how many were stalls."""
    report = summarise_lags([(0.001, 0.0005), (0.02, 0.003), (0.006, 0.006)], {"f": 2})
    assert report.max_cpu_s == 0.006
    assert (report.max_lag_s, report.cpu_s_of_max, report.num_stalls) == (0.02, 0.003, 2)
    assert summarise_lags([], {}).max_lag_s == 0.0
