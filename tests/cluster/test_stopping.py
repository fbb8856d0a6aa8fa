"""What the signals ask of `serve`, and how long a cluster that drains is waited for."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from cluster.stopping import StopSignals, drain_cluster

ENOUGH_S = 60.0


@pytest.fixture
def signals() -> Iterator[StopSignals]:
    """Installed for a test, and what was there before put back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    made = StopSignals()
    made.install()
    try:
        yield made
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Counted:
    """A cluster in which so many requests run, one look after the other."""

    def __init__(self, nums_left: list[int | None], is_lost: bool = False) -> None:
        self.is_lost = is_lost
        self.num_looks = 0
        self._nums_left = nums_left

    def look_after(self) -> None:
        self.num_looks += 1

    def drain(self) -> int | None:
        return self._nums_left.pop(0) if len(self._nums_left) > 1 else self._nums_left[0]


@pytest.mark.parametrize(
    ("numbers", "wants_drain"),
    [
        ([signal.SIGTERM], True),
        ([signal.SIGINT], False),
        ([signal.SIGTERM, signal.SIGTERM], False),
        ([signal.SIGTERM, signal.SIGINT], False),
        ([signal.SIGINT, signal.SIGTERM], False),
    ],
)
def test_only_a_first_sigterm_asks_for_a_drain(
    signals: StopSignals, numbers: list[signal.Signals], wants_drain: bool
) -> None:
    """Whatever comes after it wants an end at once."""
    assert not signals.wait(0.0)
    for number in numbers:
        signal.raise_signal(number)
    assert signals.wait(ENOUGH_S)
    assert not signals.wait(0.0)
    assert signals.wants_drain == wants_drain


def test_a_cluster_is_waited_for_until_nothing_runs(signals: StopSignals) -> None:
    """It is looked after meanwhile, and the numbers are said as they change; a router that is silent is asked again."""
    said: list[str] = []
    cluster = Counted([2, 2, None, 1, 0])
    drain_cluster(cluster, ENOUGH_S, signals, said.append)
    assert said[1:] == ["requests that still run: 2", "requests that still run: 1"]
    assert cluster.num_looks == 4


@pytest.mark.parametrize("left", [3, None])
def test_it_is_not_waited_for_longer_than_it_may_take(signals: StopSignals, left: int | None) -> None:
    """What is left is ended, which is said."""
    said: list[str] = []
    drain_cluster(Counted([left]), -1.0, signals, said.append)
    assert "time is over" in said[-1]


def test_another_signal_ends_the_wait(signals: StopSignals) -> None:
    """Whoever is in a hurry says so twice."""
    signal.raise_signal(signal.SIGTERM)
    assert signals.wait(ENOUGH_S)
    signal.raise_signal(signal.SIGTERM)
    said: list[str] = []
    drain_cluster(Counted([1]), ENOUGH_S, signals, said.append)
    assert said[-1] == "told again: what runs is ended"


def test_a_cluster_that_is_lost_is_not_waited_for(signals: StopSignals) -> None:
    """Nobody could end anything."""
    cluster = Counted([1], is_lost=True)
    drain_cluster(cluster, ENOUGH_S, signals, lambda _: None)
    assert cluster.num_looks == 0
