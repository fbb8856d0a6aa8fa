"""When a cluster is whole, and what counts as left over."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.watch import Lows, Shape, gauges_left, is_whole, leftovers, process_ids

NAMES = ("prefill-0", "prefill-1", "decode-0", "decode-1")


def _view() -> dict[str, Any]:
    status = {
        "num_blocks": 8,
        "num_free_blocks": 8,
        "num_slots": 4,
        "num_free_slots": 4,
        "num_running": 0,
        "num_waiting": 0,
    }
    workers = [
        {
            "name": name,
            "role": name.split("-")[0],
            "incarnation": "a",
            "is_healthy": True,
            "process_id": 100 + at,
            "status": dict(status),
        }
        for at, name in enumerate(NAMES)
    ]
    return {"is_ready": True, "reason": "", "workers": workers, "links": [{}] * 4, "reservations": {"leases": []}}


def test_a_whole_cluster_has_all_workers_links_and_proof() -> None:
    """In other processes than those that are gone."""
    assert is_whole(_view(), Shape())
    assert process_ids(_view(), ["decode-1"]) == (103,)
    assert not is_whole(_view(), Shape(), gone=[103])
    assert not is_whole(None, Shape())


@pytest.mark.parametrize("lack", ["worker", "link", "health", "proof", "draining"])
def test_whatever_lacks_it_is_not_whole(lack: str) -> None:
    """One is enough."""
    view = _view()
    if lack == "worker":
        view["workers"].pop()
    elif lack == "link":
        view["links"] = view["links"][1:]
    elif lack == "proof":
        view["is_ready"] = False
    elif lack == "health":
        view["workers"][2]["is_healthy"] = False
    else:
        view["workers"][2]["status"]["is_draining"] = 1
    assert not is_whole(view, Shape())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("num_free_blocks", 7),
        ("num_free_slots", 3),
        ("num_running", 1),
        ("num_waiting", 1),
        ("num_quarantined_slots", 1),
    ],
)
def test_what_is_held_is_named(name: str, value: int) -> None:
    """Nothing is in an idle cluster."""
    view = _view()
    assert leftovers(view) == []
    view["workers"][3]["status"][name] = value
    (found,) = leftovers(view)
    assert "decode-1" in found
    assert name in found


def test_leases_and_requests_are_left_over_too() -> None:
    """As the planner and the router's gauges say."""
    assert leftovers({**_view(), "reservations": {"leases": [1, 2]}}) == ["the planner holds 2 leases"]
    assert leftovers({**_view(), "reservations": None}) == []
    metrics = "# HELP kvferry_requests_running x\nkvferry_requests_running 0.0\nkvferry_requests_waiting 2.0\nother 5\n"
    assert gauges_left(metrics) == ["kvferry_requests_waiting 2.0"]


def test_the_least_free_and_the_restarts_are_kept() -> None:
    """Whatever is seen later."""
    lows, view = Lows(), _view()
    view["workers"][2]["status"]["num_free_slots"] = 1
    lows.take(view)
    view["workers"][2]["incarnation"] = "b"
    view["workers"][2]["status"]["num_free_slots"] = 4
    lows.take(view)
    assert lows.free["decode slots"] == 0.25
    assert lows.free["prefill blocks"] == 1.0
    assert lows.num_restarts == 1
