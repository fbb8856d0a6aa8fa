"""A Ray cluster of two nodes with a network between them: prefill on one, decode on the other."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.links.two_hosts import Host, two_hosts, why_not
from tests.support.serving import Serving

pytestmark = [pytest.mark.system, pytest.mark.skipif(bool(why_not()), reason=f"two hosts: {why_not()}")]


def test_prefill_and_decode_on_two_hosts(tiny_model: Path) -> None:
    """The workers are on different hosts, KV crosses by TCP, and an answer comes from both."""
    with two_hosts() as (head, other):
        argv = [str(tiny_model), "--ray-address", f"{head.address}:6391", "--placement", "spread", "--port", "0"]
        server = Serving([*argv, "--host", head.address], head.environment(), head.command())
        try:
            server.wait_ready()
            body = {"model": tiny_model.name, "prompt": list(range(60, 160)), "max_tokens": 8, "temperature": 0}
            answer = _curl(head, f"{server.url}/v1/completions", "-d", json.dumps(body))
            assert answer["usage"]["prompt_tokens"] == 100
            view = _curl(head, f"{server.url}/cluster")
        finally:
            server.kill()
    targets = {worker["role"]: worker["target"].split(":")[0] for worker in view["workers"]}
    assert set(targets.values()) == {head.address, other.address}
    assert "tcp" in view["links"][0]["transport"].lower()


def _curl(host: Host, url: str, *options: str) -> Any:
    """What a URL answers to a client on `host`."""
    command = host.command("curl", "-sS", "-m", "60", "-H", "content-type: application/json", *options, url)
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
