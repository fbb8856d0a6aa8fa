"""When a cluster is at rest, and how long one waits for it."""

import json
from typing import Any

import httpx
import pytest

from benchmarks.endurance.rest import NotAtRest, come_to_rest, unrest


def _view(num_leases: int = 0, **status: int) -> dict[str, Any]:
    free = {"num_blocks": 8, "num_free_blocks": 8, "num_slots": 4, "num_free_slots": 4}
    idle = {"num_running": 0, "num_waiting": 0, "num_quarantined_slots": 0}
    port = {"worker": "decode-0", "direction": "ingress", "num_leases": num_leases}
    return {"workers": [{"name": "decode-0", "status": {**free, **idle, **status}}], "reservations": {"ports": [port]}}


def test_a_cluster_that_holds_nothing_is_at_rest() -> None:
    """With a planner or without."""
    assert unrest(_view()) == []
    assert unrest({**_view(), "reservations": None}) == []


@pytest.mark.parametrize(
    ("view", "told"),
    [
        (_view(num_free_blocks=7), "decode-0: num_free_blocks is 7 of 8"),
        (_view(num_free_slots=3), "decode-0: num_free_slots is 3 of 4"),
        (_view(num_quarantined_slots=1), "decode-0: num_quarantined_slots is 1"),
        (_view(num_running=1), "decode-0: num_running is 1"),
        (_view(num_waiting=2), "decode-0: num_waiting is 2"),
        (_view(num_leases=1), "decode-0: 1 leases of its ingress"),
    ],
)
def test_whatever_is_held_is_told(view: dict[str, Any], told: str) -> None:
    """One sentence for each."""
    assert unrest(view) == [told]


async def _ask(views: list[dict[str, Any]], within_s: float) -> float:
    def respond(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, content=json.dumps(views.pop(0) if len(views) > 1 else views[0]))

    async with httpx.AsyncClient(transport=httpx.MockTransport(respond), base_url="http://server") as client:
        return await come_to_rest(client, within_s)


async def test_one_looks_until_all_is_free() -> None:
    """Several looks may be needed."""
    views = [_view(num_running=1), _view(num_free_slots=1), _view()]
    await _ask(views, 60.0)
    assert len(views) == 1


async def test_what_never_comes_free_is_named() -> None:
    """The error says what is still held."""
    with pytest.raises(NotAtRest, match="num_quarantined_slots is 2"):
        await _ask([_view(num_quarantined_slots=2)], 0.0)
