"""`kvferry drain` over views of a cluster: what it says, when it ends, and with which status."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import cluster.drain_command
from cluster.cli import main
from cluster.drain_command import DrainWish, Stage, drain, progress_of

BUSY = {"is_draining": 1, "is_drained": 0, "num_running": 2, "num_waiting": 1}
IDLE = {"is_draining": 1, "is_drained": 1, "num_running": 0, "num_waiting": 0}


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits between two looks, nor after the time is over."""
    monkeypatch.setattr(cluster.drain_command, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(cluster.drain_command, "MARGIN_S", 0.0)
    monkeypatch.setattr(cluster.drain_command, "START_WITHIN_S", 0.0)


def view(status: dict[str, int], *, incarnation: str = "one", is_healthy: bool = True) -> dict[str, Any]:
    """A cluster of one worker."""
    worker = {"name": "decode-0", "incarnation": incarnation, "is_healthy": is_healthy, "status": status}
    return {"workers": [worker]}


@pytest.mark.parametrize(
    ("seen", "stage"),
    [
        (view(BUSY), Stage.DRAINING),
        (view(IDLE), Stage.DRAINED),
        (view(BUSY, is_healthy=False), Stage.DRAINED),
        ({"workers": []}, Stage.DRAINED),
        (view({**BUSY, "is_draining": 0}, incarnation="two"), Stage.REPLACED),
    ],
)
def test_how_far_a_worker_is(seen: dict[str, Any], stage: Stage) -> None:
    """It drains until it says that it is drained, has ended or is gone; another life is another process."""
    assert progress_of(seen, "decode-0", "one").stage is stage


def run(seen: list[dict[str, Any]], *, restart: bool = False, waits: bool = True) -> tuple[int, list[str]]:
    """The status and what was said, over views that come one after the other."""
    said: list[str] = []
    views: Iterator[dict[str, Any]] = iter(seen)
    wish = DrainWish("decode-0", 60.0 if len(seen) > 1 else 0.0, restart, waits)
    return drain(wish, lambda _: view(BUSY)["workers"][0], lambda: next(views), said.append), said


def test_each_step_is_said_once() -> None:
    """And it ends with the worker's."""
    status, said = run([view(BUSY), view(BUSY), view({**BUSY, "num_waiting": 0}), view(IDLE)])
    assert status == 0
    assert said[1:] == [
        "decode-0: 2 running, 1 waiting",
        "decode-0: 2 running, 0 waiting",
        "decode-0 is drained",
    ]


def test_without_waiting_the_order_is_all() -> None:
    """Nobody looks."""
    assert run([], waits=False)[0] == 0


def test_with_a_restart_the_new_process_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was only drained is not enough."""
    monkeypatch.setattr(cluster.drain_command, "START_WITHIN_S", 60.0)
    status, said = run([view(IDLE), view(IDLE), view(BUSY, incarnation="two")], restart=True)
    assert (status, said[-1]) == (0, "a new decode-0 serves")


def test_a_worker_that_is_not_drained_in_time_is_a_failure() -> None:
    """It says where to look."""
    status, said = run([view(BUSY)])
    assert (status, "kvferry status" in said[-1]) == (1, True)


@pytest.mark.parametrize("timeout", ["-1", "nan", "inf", "soon"])
def test_a_time_that_is_none_is_refused(timeout: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As a mistake of the command line."""
    with pytest.raises(SystemExit) as caught:
        main(["drain", "decode-0", f"--timeout={timeout}"])
    assert caught.value.code == 2
    assert "--timeout" in capsys.readouterr().err


def test_no_router_is_a_failure_that_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing listens on port 1."""
    assert main(["drain", "decode-0", "--url", "http://127.0.0.1:1"]) == 1
    assert "no kvferry answers" in capsys.readouterr().err
