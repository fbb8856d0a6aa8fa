"""When a worker's process may be ended, and what SIGTERM does to it. No process is started here."""

from __future__ import annotations

import threading

import pytest

import cluster.worker_ending
from cluster.worker_ending import LINGER_S, QUIET_WITHIN_S, Ending
from protocol.drain import Drain
from protocol.ids import WorkerId
from tests.support.clock import FakeClock

WAIT_S = 10.0
TIMEOUT_S = 20.0


class IdleWorker:
    """Holds nothing, or something for ever."""

    def __init__(self, clock: FakeClock, is_idle: bool = True) -> None:
        self.draining = Drain(WorkerId.fresh("decode-0"))
        self._clock = clock
        self._is_idle = is_idle

    def drain(self, timeout_s: float, restart: bool) -> None:
        self.draining.begin(self._clock(), timeout_s, restart)
        self.draining.look(self._is_idle)


def ending(clock: FakeClock, is_idle: bool = True) -> tuple[Ending, IdleWorker, threading.Event]:
    """Of a worker that serves, and what is set when it ends its process."""
    ended = threading.Event()
    worker = IdleWorker(clock, is_idle)
    one = Ending(TIMEOUT_S, ended.set, clock)
    one.begin(worker)
    return one, worker, ended


def test_a_worker_that_serves_is_not_drained() -> None:
    """Nor one that is still loading."""
    clock = FakeClock()
    assert not Ending(TIMEOUT_S, lambda: None, clock).is_drained()
    one, _, _ = ending(clock)
    assert (one.is_drained(), one.wants_restart) == (False, False)


def test_a_drained_worker_lingers() -> None:
    """What it said last is still on its way."""
    clock = FakeClock()
    one, worker, _ = ending(clock)
    worker.drain(TIMEOUT_S, restart=True)
    assert not one.is_drained()
    clock.advance(LINGER_S)
    assert one.is_drained()
    assert one.wants_restart


def test_transfers_that_never_end_are_not_waited_for_for_ever() -> None:
    """Some time after its own, a worker may be ended although it holds something."""
    clock = FakeClock()
    one, worker, _ = ending(clock, is_idle=False)
    worker.drain(TIMEOUT_S, restart=False)
    clock.advance(TIMEOUT_S + QUIET_WITHIN_S)
    assert not one.is_drained()
    clock.advance(0.01)
    assert one.is_drained()
    assert not one.wants_restart


def test_sigterm_drains_and_asks_for_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends by itself when nobody has ended it by then; a second signal changes nothing."""
    monkeypatch.setattr(cluster.worker_ending, "COLLECT_WITHIN_S", 0.0)
    clock = FakeClock()
    one, worker, ended = ending(clock)
    clock.advance(1.0)
    worker.draining.begin(clock(), TIMEOUT_S, restart=False)
    worker.draining.look(is_idle=True)
    assert not one.is_drained()
    clock.advance(LINGER_S)
    one.terminate()
    one.terminate()
    assert ended.wait(WAIT_S)
    assert one.wants_restart


def test_a_process_that_loads_ends_at_once() -> None:
    """It has nothing to lose."""
    ended = threading.Event()
    Ending(TIMEOUT_S, ended.set, FakeClock()).terminate()
    assert ended.wait(WAIT_S)
