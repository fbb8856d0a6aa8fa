"""Real processes that are killed: streams go on with the same text, and whoever died is back under its name."""

from __future__ import annotations

import http.client
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import psutil
import pytest

from protocol.errors import KvferryError
from tests.support.polling import poll_until
from tests.support.serving import Serving, serving

pytestmark = [pytest.mark.system, pytest.mark.timeout(420)]

SERVED_WITHIN_S = 10.0
BACK_WITHIN_S = 120.0
"""A process has torch to load, on a machine that may be busy with other things."""
PROMPT = "The quick brown fox jumps over the lazy dog. " * 6
NUM_TOKENS = 400
KILL_AFTER_CHUNKS = 30


@pytest.fixture(scope="module")
def cluster(tiny_model: Path) -> Iterator[Serving]:
    """One prefill and two decode workers."""
    argv = ["--prefill", "1", "--decode", "2", "--max-step-tokens", "64", "--kv-cache-memory", "16MiB"]
    argv += ["--hang-timeout", "6", "--max-restarts", "10"]
    with serving(str(tiny_model), *argv) as server:
        yield server


@pytest.fixture(scope="module")
def undisturbed(cluster: Serving, tiny_model: Path) -> str:
    """The text when nothing happens."""
    return _streamed(cluster, tiny_model)


def _ask(server: Serving, model: Path, num_tokens: int, timeout_s: float, *, stream: bool) -> Any:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=timeout_s)
    return client.completions.create(
        model=model.name,
        prompt=PROMPT,
        max_tokens=num_tokens,
        temperature=0.8,
        seed=7,
        stream=stream,
        extra_body={"ignore_eos": True},
    )


def _streamed(server: Serving, model: Path, at_chunk: Callable[[], None] = lambda: None) -> str:
    """The text of a stream; `at_chunk` is called in the middle of it."""
    text = ""
    for number, chunk in enumerate(_ask(server, model, NUM_TOKENS, 60.0, stream=True)):
        text += chunk.choices[0].text
        if number == KILL_AFTER_CHUNKS:
            at_chunk()
    return text


def _is_served(server: Serving, model: Path) -> bool:
    try:
        return bool(_ask(server, model, 2, SERVED_WITHIN_S, stream=False).choices[0].text)
    except openai.OpenAIError:
        return False


def _processes(server: Serving) -> dict[str, int]:
    view = server.cluster()
    return {"router": view["router"]["process_id"], **{one["name"]: one["process_id"] for one in view["workers"]}}


def _is_whole(server: Serving, name: str, former: int) -> bool:
    """Whether a process is there again, everybody is healthy and all links are made."""
    try:
        view = server.cluster()
    except (KvferryError, OSError, http.client.HTTPException):
        return False
    present = {"router": view["router"]["process_id"], **{one["name"]: one["process_id"] for one in view["workers"]}}
    return (
        present.get(name, former) != former
        and len(present) == 4
        and view["is_ready"]
        and all(one["is_healthy"] for one in view["workers"])
        and len(view["links"]) == 2
    )


def _check_recovers(server: Serving, model: Path, name: str, former: int, text: str) -> None:
    """The next request is served in time, the process comes back, the text is the same, and nothing is held."""
    poll_until(lambda: _is_served(server, model), timeout_s=SERVED_WITHIN_S, what="an answer", pause_s=0.05)
    poll_until(lambda: _is_whole(server, name, former), timeout_s=BACK_WITHIN_S, what=f"{name} is back", pause_s=0.2)
    assert not psutil.pid_exists(former)
    assert _streamed(server, model) == text
    server.wait_idle()
    view = server.cluster()
    counts = {"router": view["router"]["num_restarts"], **{one["name"]: one["num_restarts"] for one in view["workers"]}}
    assert counts[name] >= 1
    assert any(f"{name} is started again" in line for line in server.lines)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_decode_worker_ends_in_the_middle_of_a_stream(
    number: signal.Signals, cluster: Serving, tiny_model: Path, undisturbed: str
) -> None:
    """The stream goes on elsewhere with the same seeded text: no gap and no token twice. One that hangs is killed."""
    victims: dict[str, int] = {}

    def strike() -> None:
        (busy,) = [
            one for one in cluster.cluster()["workers"] if one["role"] == "decode" and one["status"]["num_running"]
        ]
        victims[busy["name"]] = busy["process_id"]
        os.kill(busy["process_id"], number)

    assert _streamed(cluster, tiny_model, strike) == undisturbed
    ((name, former),) = victims.items()
    _check_recovers(cluster, tiny_model, name, former, undisturbed)


def test_a_prefill_worker_is_killed(cluster: Serving, tiny_model: Path, undisturbed: str) -> None:
    """Prompts are read by the decode workers until it is back; streams under way are not disturbed."""
    former = _processes(cluster)["prefill-0"]
    assert _streamed(cluster, tiny_model, lambda: os.kill(former, signal.SIGKILL)) == undisturbed
    _check_recovers(cluster, tiny_model, "prefill-0", former, undisturbed)


def test_the_router_is_killed(cluster: Serving, tiny_model: Path, undisturbed: str) -> None:
    """Its streams break, its workers stay as they are and end its requests; the next router has the same ports."""
    before = _processes(cluster)
    former = before["router"]
    with pytest.raises((openai.OpenAIError, httpx.HTTPError)):
        _streamed(cluster, tiny_model, lambda: os.kill(former, signal.SIGKILL))
    poll_until(
        lambda: _is_whole(cluster, "router", former), timeout_s=BACK_WITHIN_S, what="the router is back", pause_s=0.1
    )
    _check_recovers(cluster, tiny_model, "router", former, undisturbed)
    assert {**_processes(cluster), "router": former} == before


def test_ctrl_c_while_a_worker_starts_again(tiny_model: Path) -> None:
    """All processes end in time, the one that was just starting too: `serving` looks at it."""
    with serving(str(tiny_model), "--prefill", "1", "--decode", "1", "--kv-cache-memory", "16MiB") as server:
        os.kill(_processes(server)["decode-0"], signal.SIGKILL)
        poll_until(
            lambda: any("decode-0 is started again" in line for line in server.lines),
            timeout_s=SERVED_WITHIN_S,
            what="that the end was noticed",
            pause_s=0.02,
        )
