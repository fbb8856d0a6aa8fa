"""What the client makes of the router's view of its cluster."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx

from benchmarks.links.asking import Answer, landed, with_landing
from benchmarks.load.client import LoadRequest, Target, send


def view(num_transfers: int, num_failures: int, num_bytes: int, shipped: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    """One decode worker, and one prefill worker of whose counts only hidden and acknowledged bytes matter."""
    counts = {"num_transfers": num_transfers, "num_transfer_failures": num_failures, "transfer_bytes": num_bytes}
    other = {"num_transfers": 77, "num_transfer_failures": 7, "transfer_bytes": 777}
    other |= {"hidden_bytes": shipped[0], "acknowledged_bytes": shipped[1]}
    counts |= {"hidden_bytes": 0, "acknowledged_bytes": 0}
    return {
        "workers": [
            {"role": "prefill", "target": "10.201.7.1:4000", "status": other},
            {"role": "decode", "target": "10.201.7.2:4000", "status": counts},
        ]
    }


def test_a_transfer_adds_its_bytes() -> None:
    """As the decode worker counted them, and it is told which side the router is on."""
    before, after = landed(view(3, 0, 1000), "10.201.7.1"), landed(view(4, 0, 8000), "10.201.7.1")
    answer = with_landing(Answer(0.3, False, None, 1.0, 2.0), before, after)
    assert (answer.error, answer.kv_bytes, answer.is_prefill_beside_router) == (None, 7000, True)
    assert not landed(view(4, 0, 8000), "10.201.7.2").is_prefill_here


def test_a_failed_transfer_is_no_measurement() -> None:
    """The answer came, but its KV did not cross."""
    before, after = landed(view(3, 0, 1000), "10.201.7.1"), landed(view(4, 1, 1000), "10.201.7.1")
    assert with_landing(Answer(0.3, False, None, 1.0, 9.0), before, after).error == "transfer_failed"


def test_the_hidden_share_is_that_of_the_one_transfer() -> None:
    """What came before it does not count; nothing is said where nothing was acknowledged."""
    before = landed(view(3, 0, 1000, (900, 1000)), "10.201.7.1")
    after = landed(view(4, 0, 8000, (2650, 8000)), "10.201.7.1")
    assert with_landing(Answer(1.0, False, None, 1.0, 2.0), before, after).hidden_ratio == 0.25
    assert with_landing(Answer(1.0, False, None, 1.0, 2.0), before, before).hidden_ratio is None


def test_a_transfer_has_ended_when_both_sides_say_so() -> None:
    """A failure is known from the decode worker alone."""
    before = landed(view(3, 0, 1000, (900, 1000)), "10.201.7.1")
    assert not landed(view(4, 0, 8000, (900, 1000)), "10.201.7.1").has_one_more_than(before)
    assert not landed(view(3, 0, 1000, (900, 8000)), "10.201.7.1").has_one_more_than(before)
    assert landed(view(4, 0, 8000, (900, 8000)), "10.201.7.1").has_one_more_than(before)
    assert landed(view(4, 1, 1000, (900, 1000)), "10.201.7.1").has_one_more_than(before)


async def test_further_fields_of_a_request_reach_the_server() -> None:
    """Beside those that every request has."""
    bodies: list[dict[str, Any]] = []

    async def events() -> AsyncIterator[bytes]:
        yield b"data: [DONE]\n\n"

    def answer(request: httpx.Request) -> httpx.Response:
        bodies.append(json.loads(request.content))
        return httpx.Response(200, content=events())

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), base_url="http://server") as client:
        await send(Target(client, "m", 10.0), LoadRequest(0.0, [7], 4, {"kv_wire_budget": 0.3}), 0.0)
    assert (bodies[0]["kv_wire_budget"], bodies[0]["prompt"], bodies[0]["stream"]) == (0.3, [7], True)
