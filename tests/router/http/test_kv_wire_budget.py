"""The precision that a request asks for its KV, and what the router says of the KV that crossed."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from protocol.wire_rule import WireCodec, WireOffer, WireRule
from router.generation import KvLanded
from tests.support.http_front import FrontUnderTest, front_config
from tests.support.scripted_generator import Script, ScriptedGenerator

OFFER = WireOffer(WireRule(WireCodec.CHANNEL, 0.4, allows_int4=False), 0.3)
LANDED = KvLanded(wire_bytes=1_620_000, half_bytes=5_400_000)
AGAIN = KvLanded(wire_bytes=180_000, half_bytes=600_000)


def _front(*landings: KvLanded, offer: WireOffer = OFFER) -> FrontUnderTest:
    return FrontUnderTest(ScriptedGenerator(Script(list(b"abc"), landings=landings)), front_config(wire=offer))


async def _ask(front: FrontUnderTest, path: str, **fields: Any) -> Any:
    return await (front.chat if path == "chat" else front.complete)(**fields)


@pytest.mark.parametrize("path", ["completions", "chat"])
@pytest.mark.parametrize("budget", [None, 0.3, 0.35, 1, 1.0])
async def test_it_reaches_the_request(path: str, budget: float | None) -> None:
    """As it was sent; without it the workers decide. Every prompt of a list has it."""
    front = _front()
    response = await _ask(front, path, kv_wire_budget=budget, max_tokens=2)
    assert response.status_code == 200, response.text
    assert [request.kv_wire_budget for request in front.generator.requests] == [budget]


@pytest.mark.parametrize("path", ["completions", "chat"])
@pytest.mark.parametrize("budget", [0.29, 0, -1, 1.01, "0.5", True])
async def test_out_of_bounds_it_is_refused_by_name(path: str, budget: Any) -> None:
    """With 400, and no worker hears of it."""
    front = _front()
    response = await _ask(front, path, kv_wire_budget=budget)
    error = response.json()["error"]
    assert (response.status_code, error["param"], error["code"]) == (400, "kv_wire_budget", "invalid_request")
    assert front.generator.requests == []


@pytest.mark.parametrize(
    ("offer", "bounds"), [(WireOffer(), "1 to 1"), (WireOffer(OFFER.rule), "0.4 to 1"), (OFFER, "0.3 to 1")]
)
async def test_a_refusal_names_the_bounds(offer: WireOffer, bounds: str) -> None:
    """Those of the server, which by default are its own budget and 1."""
    response = await _front(offer=offer).complete(kv_wire_budget=0.2)
    assert bounds in response.json()["error"]["message"]


async def test_what_crossed_is_logged_and_measured(caplog: pytest.LogCaptureFixture) -> None:
    """Once a prompt, however many choices it has, all that crossed for it together."""
    front = _front(LANDED, AGAIN)
    with caplog.at_level(logging.INFO):
        await front.complete(n=2, max_tokens=3)
    (line,) = [record.getMessage() for record in caplog.records if "prompt tokens" in record.getMessage()]
    assert line.endswith("ms, KV 1.80 MB at 0.300 of FP16")
    assert front.metric("kvferry_kv_wire_bytes_total") == LANDED.wire_bytes + AGAIN.wire_bytes
    assert front.metric("kvferry_kv_half_bytes_total") == LANDED.half_bytes + AGAIN.half_bytes
    assert front.metric("kvferry_kv_wire_ratio_count") == 1
    assert front.metric("kvferry_kv_wire_ratio_sum") == pytest.approx(0.3)
    assert front.metric("kvferry_kv_wire_ratio_bucket", le="0.275") == 0
    assert front.metric("kvferry_kv_wire_ratio_bucket", le="0.325") == 1


async def test_a_request_that_failed_has_crossed_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    """Its bytes are counted."""
    failing = Script([65], error=RuntimeError("lost"), landings=[LANDED])
    front = FrontUnderTest(ScriptedGenerator(failing), front_config(wire=OFFER))
    with caplog.at_level(logging.INFO):
        assert (await front.complete(max_tokens=5)).status_code == 500
    assert "internal_error" in caplog.text
    assert "KV 1.62 MB at 0.300 of FP16" in caplog.text
    assert front.metric("kvferry_kv_wire_bytes_total") == LANDED.wire_bytes


async def test_where_nothing_crossed_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Neither in the log nor in the histogram."""
    front = _front()
    with caplog.at_level(logging.INFO):
        await front.complete(max_tokens=3)
    assert "KV" not in caplog.text
    assert front.metric("kvferry_kv_wire_ratio_count") == 0


@pytest.mark.parametrize(
    ("offer", "labels"),
    [
        (OFFER, {"codec": "channel", "budget": "0.4", "min_budget": "0.3", "int4": "false"}),
        (WireOffer(), {"codec": "native", "budget": "1", "min_budget": "1", "int4": "true"}),
    ],
)
async def test_the_servers_rule_is_shown(offer: WireOffer, labels: dict[str, str]) -> None:
    """Codec, budget, bounds and INT4, as labels of a gauge that is 1."""
    assert _front(offer=offer).metric("kvferry_kv_wire_info", **labels) == 1
