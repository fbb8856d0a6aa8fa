"""A Ray cluster of two nodes with a network between them: prefill on one, decode on the other."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.support.serving import Serving
from tests.support.two_hosts import two_hosts, why_not

pytestmark = [pytest.mark.system, pytest.mark.skipif(bool(why_not()), reason=f"two hosts: {why_not()}")]


def test_prefill_and_decode_on_two_hosts(tiny_model: Path) -> None:
    """The workers are on different hosts, KV crosses by TCP, and an answer comes from both."""
    with two_hosts() as (head, other):
        argv = [str(tiny_model), "--ray-address", f"{head.address}:6391", "--placement", "spread", "--port", "0"]
        server = Serving([*argv, "--host", head.address], head.environment(), head.command())
        try:
            server.wait_ready()
            body = {"model": tiny_model.name, "prompt": list(range(60, 160)), "max_tokens": 8, "temperature": 0}
            asked = subprocess.run(
                head.command(
                    "curl", "-sS", "-m", "60", f"{server.url}/v1/completions", "-H", "content-type: application/json"
                )
                + ["-d", json.dumps(body)],
                capture_output=True,
                text=True,
                check=True,
            )
            answer = json.loads(asked.stdout)
            assert answer["usage"]["prompt_tokens"] == 100
            looked = subprocess.run(
                head.command("curl", "-sS", "-m", "10", f"{server.url}/cluster"),
                capture_output=True,
                text=True,
                check=True,
            )
            view = json.loads(looked.stdout)
        finally:
            server.kill()
    targets = {worker["role"]: worker["target"].split(":")[0] for worker in view["workers"]}
    assert set(targets.values()) == {head.address, other.address}
    assert "tcp" in view["links"][0]["transport"].lower()
