"""What becomes of an answer once its transfer is counted."""

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import httpx
import pytest

from benchmarks.links.asking import Answer, with_landing
from benchmarks.links.counts import landed
from benchmarks.load.client import LoadRequest, Target, send
from tests.benchmarks.links.test_counts import HERE, transfer, view

ANSWER = Answer(256, 0.3, False, None, ttft_s=2.0, second_token_s=3.0, achieved_bytes_per_second=9.0)


def test_a_transfer_adds_its_bytes() -> None:
    """As the decode worker counted them; what they were made at follows from the time to the first token."""
    before, after = landed(view((3, 0, 1000)), HERE), landed(view((4, 0, 1_001_000)), HERE)
    answer = with_landing(ANSWER, before, after)
    assert (answer.error, answer.kv_bytes, answer.gap_s) == (None, 1_000_000, 1.0)
    assert answer.production_mbit == pytest.approx(4.0)
    assert ANSWER.production_mbit is None


def test_a_failed_transfer_is_no_measurement() -> None:
    """The answer came, but its KV did not cross."""
    before, after = landed(view((3, 0, 1000)), HERE), landed(view((4, 1, 1000)), HERE)
    assert with_landing(ANSWER, before, after).error == "transfer_failed"


def test_the_hidden_share_is_that_of_the_one_transfer() -> None:
    """What came before it does not count; nothing is said where nothing was acknowledged."""
    before = landed(view((3, 0, 1000), (900, 1000)), HERE)
    after = landed(view((4, 0, 8000), (2650, 8000)), HERE)
    assert with_landing(ANSWER, before, after).hidden_ratio == 0.25
    assert with_landing(ANSWER, before, before).hidden_ratio is None


def test_kv_is_late_as_long_as_it_crosses_after_the_first_token() -> None:
    """Not at all when it had crossed before; nobody knows without the cable's counters."""
    assert replace(ANSWER, cable_end_s=2.5).late_s == 0.5
    assert replace(ANSWER, cable_end_s=1.5).late_s == 0.0
    assert ANSWER.late_s is None


def test_rates_are_the_routers_where_it_had_a_plan() -> None:
    """Else what the cable carried stands for what was achieved, and nothing was reserved."""
    before, after = landed(view((0, 0, 0), planned=()), HERE), landed(view((1, 0, 9), planned=()), HERE)
    unplanned = with_landing(ANSWER, before, after)
    assert (unplanned.reserved_bytes_per_second, unplanned.achieved_bytes_per_second) == (None, 9.0)
    after = landed(view((1, 0, 9), planned=(transfer("a", 9, 5.0, 4.0),)), HERE)
    planned = with_landing(ANSWER, before, after)
    assert (planned.reserved_bytes_per_second, planned.achieved_bytes_per_second) == (5.0, 4.0)


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
