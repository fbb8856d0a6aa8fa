"""Servants in processes of their own."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.door.pinned import PinnedProcess
from protocol.errors import KvferryError


class Clerk:
    """A servant that says where it runs."""

    def start(self) -> int:
        return os.getpid()

    def cores(self) -> set[int]:
        return os.sched_getaffinity(0)

    def fail(self) -> None:
        sys.stderr.write("on the way\n")
        raise ValueError("not like this")

    def stop(self) -> None:
        return None


@pytest.fixture
def clerk(tmp_path: Path) -> Iterator[PinnedProcess]:
    """The servant's process, on one of the cores that are here."""
    process = PinnedProcess("clerk", Clerk, [min(os.sched_getaffinity(0))], tmp_path / "log")
    try:
        yield process
    finally:
        process.close()


def test_a_servant_lives_elsewhere_on_its_core(clerk: PinnedProcess) -> None:
    """Calls cross by name, processor time can be read, and what fails is told with what was logged."""
    assert clerk.call("start") != os.getpid()
    assert clerk.call("cores") == {min(os.sched_getaffinity(0))}
    assert clerk.cpu_s() >= 0
    with pytest.raises(KvferryError, match=r"(?s)on the way.*not like this"):
        clerk.call("fail")
    assert clerk.call("start")
