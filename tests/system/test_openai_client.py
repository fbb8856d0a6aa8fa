"""The demo model behind the `openai` client: what a user does first."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

import openai
import psutil
import pytest

from cluster.http_client import get_json
from tests.support.serving import Serving, serving

pytestmark = pytest.mark.system

QUESTION: Any = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]


@pytest.fixture(scope="module")
def demo() -> Iterator[Serving]:
    """`kvferry serve smollm2-135m --prefill 1 --decode 1`."""
    with serving("smollm2-135m", "--prefill", "1", "--decode", "1", "--kv-cache-memory", "256MiB") as server:
        yield server


@pytest.fixture(scope="module")
def client(demo: Serving) -> openai.OpenAI:
    """The client as the README shows it."""
    return openai.OpenAI(base_url=f"{demo.url}/v1", api_key="none", max_retries=0, timeout=120)


def test_chat_answers_and_streams_the_same(demo: Serving, client: openai.OpenAI) -> None:
    """A real model knows the capital of France; the stream is the same text; usage is right in both."""
    whole = client.chat.completions.create(model="smollm2-135m", messages=QUESTION, max_tokens=24, temperature=0)
    text = whole.choices[0].message.content
    assert "Paris" in str(text)
    assert whole.choices[0].finish_reason == "stop"
    chunks = list(
        client.chat.completions.create(
            model="smollm2-135m",
            messages=QUESTION,
            max_tokens=24,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == text
    assert whole.usage is not None
    counted = whole.usage.model_dump(exclude={"prompt_tokens_details"})
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.model_dump(exclude={"prompt_tokens_details"}) == counted
    details = chunks[-1].usage.prompt_tokens_details
    assert details is not None
    assert (
        details.cached_tokens == (whole.usage.prompt_tokens - 1) // 16 * 16
    )  # all that the first question left behind
    assert whole.usage.completion_tokens > 4
    demo.wait_idle()


def test_completions_answer_and_stream_the_same(client: openai.OpenAI) -> None:
    """Text prompts, seeds and stop strings, streamed and not."""
    for options in (
        {"temperature": 0},
        {"temperature": 0.8, "seed": 7, "top_p": 0.9},
        {"temperature": 0, "stop": [","]},
    ):
        arguments: Any = {"model": "smollm2-135m", "prompt": "One, two, three,", "max_tokens": 12, **options}
        whole = client.completions.create(**arguments)
        streamed = client.completions.create(**arguments, stream=True)
        assert "".join(chunk.choices[0].text for chunk in streamed) == whole.choices[0].text
        assert "," not in whole.choices[0].text or "stop" not in options


def test_the_prompt_is_read_by_one_process_and_answered_by_another(demo: Serving, client: openai.OpenAI) -> None:
    """Only the prefill worker computes the prompt, only the decode worker's steps make the rest, and KV crosses between."""
    before = {one["name"]: one["status"] for one in demo.cluster()["workers"]}
    prompt = list(range(1000, 1100))
    client.completions.create(
        model="smollm2-135m", prompt=prompt, max_tokens=6, temperature=0, extra_body={"ignore_eos": True}
    )
    after = {one["name"]: one["status"] for one in demo.cluster()["workers"]}
    moved = {name: {key: after[name][key] - before[name][key] for key in after[name]} for name in after}
    assert moved["prefill-0"]["num_local_prefill_tokens"] == len(prompt)
    assert moved["decode-0"]["num_local_prefill_tokens"] == 0
    assert moved["decode-0"]["num_remote_prefill_tokens"] == len(prompt)
    assert moved["decode-0"]["num_steps"] == 5
    assert moved["decode-0"]["transfer_bytes"] == moved["prefill-0"]["transfer_bytes"] > 100 * 46_080
    assert moved["decode-0"]["landed_wire_bytes"] == moved["decode-0"]["transfer_bytes"]
    assert moved["decode-0"]["landed_half_bytes"] == 100 * 46_080 // 2


def test_one_token_never_touches_the_decode_worker(demo: Serving, client: openai.OpenAI) -> None:
    """The first token comes from the prefill worker; when it is the last, nothing is shipped."""
    before = demo.worker("decode-0")["status"]
    answer = client.completions.create(model="smollm2-135m", prompt="The sky is", max_tokens=1, temperature=0)
    assert answer.usage is not None
    assert (answer.usage.completion_tokens, answer.choices[0].finish_reason) == (1, "length")
    assert demo.worker("decode-0")["status"] == before


def test_bad_requests_are_refused_and_the_next_is_served(demo: Serving, client: openai.OpenAI) -> None:
    """Each mistake has its status and touches no worker."""
    before = {one["name"]: one["status"]["num_steps"] for one in demo.cluster()["workers"]}
    with pytest.raises(openai.NotFoundError):
        client.completions.create(model="gpt-4", prompt="x")
    mistakes: tuple[dict[str, Any], ...] = (
        {"prompt": [5] * 9000},
        {"prompt": ""},
        {"prompt": "x", "max_tokens": -1},
        {"prompt": "x", "temperature": -2},
        {"prompt": "x", "top_p": 7},
        {"prompt": [10**7]},
    )
    for wrong in mistakes:
        with pytest.raises(openai.BadRequestError):
            client.completions.create(model="smollm2-135m", **wrong)
    assert _post(demo, b"{not json") == 400
    assert _post(demo, b'{"prompt": "' + b"x" * 10_000_000 + b'"}') == 413
    assert {one["name"]: one["status"]["num_steps"] for one in demo.cluster()["workers"]} == before
    client.completions.create(model="smollm2-135m", prompt="Good morning", max_tokens=2)


def test_a_client_that_leaves_stops_both_workers(demo: Serving, client: openai.OpenAI) -> None:
    """After a disconnect in the middle of an answer all blocks and slots are free again."""
    stream = client.completions.create(
        model="smollm2-135m",
        prompt="Tell me everything.",
        max_tokens=2000,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    for _, _ in zip(range(3), stream, strict=False):
        pass
    assert demo.worker("decode-0")["status"]["num_running"] == 1
    stream.close()
    demo.wait_idle()


def test_each_worker_keeps_to_its_own_cores(demo: Serving) -> None:
    """No thread of a worker may run on the other's core."""
    workers = demo.cluster()["workers"]
    cores = [set(worker["cores"]) for worker in workers]
    assert cores[0].isdisjoint(cores[1])
    for worker, own in zip(workers, cores, strict=True):
        for thread in psutil.Process(worker["process_id"]).threads():
            status = Path(f"/proc/{worker['process_id']}/task/{thread.id}/status").read_text()
            allowed = next(line.split()[1] for line in status.splitlines() if line.startswith("Cpus_allowed_list"))
            assert set(map(int, allowed.split(","))) == own


def test_health_readiness_and_metrics(demo: Serving) -> None:
    """Ready since a real generation crossed; the figures of router and workers are exported."""
    assert get_json(f"{demo.url}/health") == {"status": "ok"}
    assert get_json(f"{demo.url}/readiness")["status"] == "ready"
    connection = http.client.HTTPConnection(urlparse(demo.url).netloc, timeout=10)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    for name in ("kvferry_time_to_first_token_seconds", "kvferry_kv_transfer_bytes_total", "kvferry_kv_blocks_free"):
        assert name in text


def _post(server: Serving, body: bytes) -> int:
    connection = http.client.HTTPConnection(urlparse(server.url).netloc, timeout=30)
    try:
        connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        assert "message" in json.loads(answer.read())["error"]
        return answer.status
    finally:
        connection.close()
