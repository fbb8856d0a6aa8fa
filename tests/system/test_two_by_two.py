"""Two workers of each role: many requests at once, `status`, and draining with answers under way that must not notice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from tests.support.oracle import prompt_of
from tests.support.polling import poll_until
from tests.support.serving import ROOT, Serving, serving

pytestmark = pytest.mark.system

NUM_TOKENS = 800
PROMPT = prompt_of(100, 250)
REPLACED_WITHIN_S = 120.0
ENDED_WITHIN_S = 120.0


@pytest.fixture(scope="module")
def cluster(tiny_model: Path) -> Iterator[Serving]:
    """Two workers of each role."""
    with serving(str(tiny_model), "--prefill", "2", "--decode", "2", "--kv-cache-memory", "16MiB") as server:
        yield server


class Stream:
    """A streamed answer, read in a thread of its own."""

    def __init__(self, server: Serving, model: str) -> None:
        self.text = ""
        self.failure: Exception | None = None
        self.has_begun = threading.Event()
        self._client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)
        self._model = model
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def result(self) -> str:
        """All of it. Raises what ended it too early."""
        self._thread.join(120)
        if self.failure is not None:
            raise self.failure
        return self.text

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return not self._thread.is_alive()

    def _read(self) -> None:
        try:
            chunks = self._client.completions.create(
                model=self._model,
                prompt=PROMPT,
                max_tokens=NUM_TOKENS,
                temperature=0,
                stream=True,
                extra_body={"ignore_eos": True},
            )
            for chunk in chunks:
                self.text += chunk.choices[0].text
                self.has_begun.set()
        except Exception as error:  # noqa: BLE001 - told to the test
            self.failure = error


def begun(server: Serving, model: str) -> Stream:
    """A stream that has begun."""
    stream = Stream(server, model)
    assert stream.has_begun.wait(60)
    return stream


def busy(server: Serving, role: str) -> dict[str, Any]:
    """The worker of a role that has requests."""

    def found() -> Any:
        return next(
            (one for one in server.cluster()["workers"] if one["role"] == role and one["status"]["num_running"]), None
        )

    return dict(poll_until(found, what=f"a busy {role} worker", pause_s=0.01))


def kvferry(*argv: str) -> subprocess.CompletedProcess[str]:
    """The command line, to its end."""
    command = [sys.executable, "-m", "cluster.cli", *argv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=REPLACED_WITHIN_S, check=False)


def wait_for_another_life(server: Serving, old: dict[str, Any]) -> None:
    """Until the router knows the worker as a new process."""

    def is_new() -> bool:
        new = server.worker(old["name"])
        return bool(new["is_healthy"] and new["incarnation"] != old["incarnation"])

    poll_until(is_new, timeout_s=REPLACED_WITHIN_S, what=f"a new {old['name']}", pause_s=0.2)


def test_many_at_once_and_status(cluster: Serving, tiny_model: Path) -> None:
    """Sixteen requests at once are answered as one after the other, every worker has its share, and `status` shows them all."""
    client = openai.OpenAI(base_url=f"{cluster.url}/v1", api_key="none", max_retries=0, timeout=120)

    def ask(number: int) -> str:
        prompt = prompt_of(50 + number, 250)
        answer = client.completions.create(model=tiny_model.name, prompt=prompt, max_tokens=12, temperature=0)
        return answer.choices[0].text

    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(ask, range(16)))
    assert together == [ask(number) for number in range(16)]
    cluster.wait_idle()
    assert all(worker["status"]["num_steps"] > 0 for worker in cluster.cluster()["workers"])
    shown = kvferry("status", "--url", cluster.url)
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in ("prefill-1", "decode-1", "ready", "B/s"))
    view = json.loads(kvferry("status", "--url", cluster.url, "--json").stdout)
    assert len(view["links"]) == 4


def test_a_drained_d_is_replaced_and_its_stream_goes_on(cluster: Serving, tiny_model: Path) -> None:
    """The time is too short for the stream, which moves: not a token is lost or told twice, and a new process serves then."""
    expected = Stream(cluster, tiny_model.name).result()
    stream = begun(cluster, tiny_model.name)
    old = busy(cluster, "decode")
    shown = kvferry("drain", old["name"], "--url", cluster.url, "--timeout", "0.1", "--restart")
    assert shown.returncode == 0, shown.stderr
    assert stream.result() == expected
    assert cluster.worker(old["name"])["incarnation"] != old["incarnation"]
    assert not psutil.pid_exists(old["process_id"])
    assert f"a new {old['name']} serves" in shown.stderr
    assert Stream(cluster, tiny_model.name).result() == expected


def test_sigterm_to_a_worker_is_a_rolling_restart(cluster: Serving, tiny_model: Path) -> None:
    """Answers that run meanwhile are whole, and another life of the worker takes its place."""
    expected = Stream(cluster, tiny_model.name).result()
    streams = [begun(cluster, tiny_model.name) for _ in range(4)]
    old = next(one for one in cluster.cluster()["workers"] if one["role"] == "decode")
    psutil.Process(old["process_id"]).send_signal(signal.SIGTERM)
    streams += [Stream(cluster, tiny_model.name) for _ in range(4)]
    assert [one.result() for one in streams] == [expected] * 8
    wait_for_another_life(cluster, old)


def test_scale_down(cluster: Serving, tiny_model: Path) -> None:
    """What the worker has ends there; its process goes and stays away, and the others serve on."""
    name = "decode-1"
    expected = Stream(cluster, tiny_model.name).result()
    streams = [begun(cluster, tiny_model.name) for _ in range(4)]
    process = psutil.Process(cluster.worker(name)["process_id"])
    shown = kvferry("drain", name, "--url", cluster.url, "--timeout", "100")
    assert shown.returncode == 0, shown.stderr
    assert [one.result() for one in streams] == [expected] * 4
    process.wait(ENDED_WITHIN_S)
    assert Stream(cluster, tiny_model.name).result() == expected
    assert "drained" in kvferry("status", "--url", cluster.url).stdout


def test_mistakes_of_the_command_line(cluster: Serving) -> None:
    """A worker that is not there is the user's mistake; the answer names those that are."""
    shown = kvferry("drain", "decode-9", "--url", cluster.url)
    assert shown.returncode == 2
    assert "decode-0" in shown.stderr


def refusal_of(server: Serving, model: str) -> openai.APIStatusError:
    """What a new request is refused with, as soon as one is."""
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=60)
    refusals: list[openai.APIStatusError] = []

    def is_refused() -> bool:
        try:
            client.completions.create(model=model, prompt=PROMPT, max_tokens=1)
        except openai.APIStatusError as error:
            refusals.append(error)
        return bool(refusals)

    poll_until(is_refused, timeout_s=ENDED_WITHIN_S, what="a refusal", pause_s=0.01)
    return refusals[0]


def test_sigterm_to_serve_lets_streams_end(tiny_model: Path) -> None:
    """What runs is whole, what is new is refused as not ready, then everything is gone, with exit status 0."""
    server = Serving([str(tiny_model), "--kv-cache-memory", "16MiB", "--drain-timeout", "120", "--port", "0"], {})
    try:
        server.wait_ready()
        expected = Stream(server, tiny_model.name).result()
        stream = begun(server, tiny_model.name)
        family = psutil.Process(server.process.pid).children(recursive=True)
        server.process.send_signal(signal.SIGTERM)

        refused = refusal_of(server, tiny_model.name)
        assert (refused.status_code, refused.code) == (503, "not_ready")
        assert int(refused.response.headers["retry-after"]) > 0
        assert not stream.is_over
        assert stream.result() == expected, list(server.lines)
        assert server.process.wait(ENDED_WITHIN_S) == 0
        assert not psutil.wait_procs(family, timeout=10.0)[1]
    finally:
        server.kill()
