"""What `/metrics` shows, and that the documentation lists it."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry

from router.front.metrics import FrontMetrics
from tests.support.http_front import FrontUnderTest, front_config
from tests.support.scripted_generator import Script, ScriptedGenerator

DOCUMENT = Path(__file__).parents[3] / "docs" / "metrics.md"


async def test_a_finished_request_is_counted_once_everywhere() -> None:
    """Totals by outcome, tokens, and one observation for each latency and gap."""
    front = FrontUnderTest(ScriptedGenerator(Script(list(b"hello"), cached_tokens=1)))
    await front.complete(max_tokens=5)
    assert front.metric("kvferry_requests_total", endpoint="completions", outcome="length") == 1
    assert front.metric("kvferry_prompt_tokens_total") == 2
    assert front.metric("kvferry_cached_prompt_tokens_total") == 1
    assert front.metric("kvferry_generated_tokens_total") == 5
    assert front.metric("kvferry_time_to_first_token_seconds_count") == 1
    assert front.metric("kvferry_time_to_second_token_seconds_count") == 1
    assert front.metric("kvferry_inter_token_latency_seconds_count") == 4
    assert front.metric("kvferry_request_duration_seconds_count") == 1
    assert front.metric("kvferry_admission_wait_seconds_count") == 1


async def test_outcomes_are_told_apart() -> None:
    """Refused, failed, stopped and full-length requests are counted under their own names, by endpoint."""
    front = FrontUnderTest(ScriptedGenerator(Script(list(b"abc"))), front_config(max_concurrent=1, max_queue=0))
    await front.complete(temperature=9)
    await front.complete(prompt=["a", "b"])
    await front.complete(max_tokens=3)
    await front.complete(stop="b")
    await front.chat(max_tokens=1)

    def count(outcome: str, endpoint: str = "completions") -> float:
        return front.metric("kvferry_requests_total", endpoint=endpoint, outcome=outcome)

    assert count("invalid_request") == 3
    assert (count("length"), count("stop"), count("length", "chat")) == (1, 1, 1)


async def test_the_endpoint_shows_the_registry() -> None:
    """Prometheus' text, with what others have put into the same registry."""
    front = FrontUnderTest()
    response = await front.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain")
    assert "kvferry_requests_running 0.0" in response.text


def test_the_document_lists_exactly_the_routers_metrics() -> None:
    """Each metric of the code is in the router's table with its kind and labels, and nothing else is."""
    section = DOCUMENT.read_text().split("## Router", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| `(kvferry_\w+)(?:\{([\w,]+)\})?` \| (\w+) \|", section, re.MULTILINE)
    registry = CollectorRegistry()
    FrontMetrics(registry)
    known = {
        (family.name + ("_total" if family.type == "counter" else ""), family.type) for family in registry.collect()
    }
    assert {(name, kind) for name, _, kind in rows} == known
    labels_of = {name: labels for name, labels, _ in rows if labels}
    assert labels_of == {
        "kvferry_requests_total": "endpoint,outcome",
        "kvferry_kv_wire_info": "codec,budget,min_budget,int4",
    }
