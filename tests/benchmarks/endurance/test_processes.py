"""Processes by name, and their readings over time."""

import asyncio
import os

import psutil
import pytest

from benchmarks.endurance.processes import RAY, ROUTER, SERVE, Reading, Watch, name_of, processes_of


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["ray::RouterActor.failure"], ROUTER),
        (["python", "-m", "cluster.cli", "serve", "model"], SERVE),
        (["/opt/ray/gcs_server", "--port=1"], RAY),
        ([], RAY),
    ],
)
def test_commands_tell_what_a_process_is(command: list[str], name: str) -> None:
    """The router, the command that the user started, or one of Ray's own."""
    assert name_of(command) == name


def test_a_worker_that_is_no_process_of_ours_is_an_error() -> None:
    """One that runs elsewhere cannot be watched."""
    view = {"workers": [{"name": "decode-0", "process_id": 2**30}]}
    with pytest.raises(RuntimeError, match="decode-0, router, serve"):
        processes_of(view, psutil.Process())


def test_readings_of_several_processes_add_up() -> None:
    """All figures do."""
    assert Reading(1, 2, 3) + Reading(10, 20, 30) == Reading(11, 22, 33)


async def test_a_watch_looks_again_and_again() -> None:
    """Each name has a reading at each place."""
    watch = Watch({"self": [psutil.Process(os.getpid())]})
    has_looked_often = asyncio.Event()

    def place() -> float:
        if len(watch.places) == 3:
            has_looked_often.set()
        return float(len(watch.places))

    with watch.every(0.0, place):
        async with asyncio.timeout(60.0):
            await has_looked_often.wait()
    assert watch.places[:3] == [0.0, 1.0, 2.0]
    assert len(watch.readings["self"]) == len(watch.places)
    assert watch.readings["self"][0].resident_bytes > 0
