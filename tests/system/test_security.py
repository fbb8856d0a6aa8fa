"""A cluster with a key and a certificate: who gets in at the front, who gets in at the back, and what is never shown."""

from __future__ import annotations

import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import openai
import psutil
import pytest

from cluster.http_client import Access, get_json
from protocol import kvferry_worker_pb2 as pb
from protocol import kvferry_worker_pb2_grpc as rpc
from protocol.rpc_channel import open_channel
from tests.support.certificate import why_not, write_certificate
from tests.support.oracle import prompt_of
from tests.support.serving import ROOT, Serving, serving

pytestmark = [pytest.mark.system, pytest.mark.skipif(bool(why_not()), reason=why_not())]

KEY = "sk-marker-of-the-first-key"
SECOND_KEY = "sk-marker-of-the-second-key"
TOKEN = "marker-of-the-cluster-s-token"


@dataclass(frozen=True, slots=True)
class Guarded:
    """The cluster, and how it is reached."""

    server: Serving
    cert: Path

    def view(self) -> Any:
        """The router's view of the cluster."""
        return get_json(f"{self.server.url}/cluster", Access(KEY, str(self.cert)))


@pytest.fixture(scope="module")
def guarded(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """One prefill and one decode worker behind a key, a certificate and a token from a file."""
    folder = tmp_path_factory.mktemp("secrets")
    made = write_certificate(folder, "IP:127.0.0.1")
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "keys").write_text(f"# the second\n{SECOND_KEY}\n")
    argv = ["--tls-cert", str(made.cert), "--tls-key", str(made.key), "--cluster-token-file", str(folder / "token")]
    more = ["--api-key-file", str(folder / "keys"), "--kv-cache-memory", "16MiB", "--log-level", "debug"]
    with serving(str(tiny_model), *argv, *more, environment={"KVFERRY_API_KEY": KEY}) as server:
        yield Guarded(server, made.cert)


@pytest.mark.parametrize("key", [KEY, SECOND_KEY])
def test_openais_client_is_served_with_a_key(guarded: Guarded, tiny_model: Path, key: str) -> None:
    """Over TLS, by both workers: the KV crosses between processes that know the token."""
    trust = ssl.create_default_context(cafile=str(guarded.cert))
    with openai.DefaultHttpxClient(verify=trust) as http_client:
        client = openai.OpenAI(base_url=f"{guarded.server.url}/v1", api_key=key, http_client=http_client, max_retries=0)
        answer = client.completions.create(model=tiny_model.name, prompt=prompt_of(60, 250), max_tokens=4)
        assert answer.usage is not None
        assert answer.usage.completion_tokens == 4
        with pytest.raises(openai.AuthenticationError):
            client.with_options(api_key="wrong").models.list()


def test_status_needs_the_key_and_the_certificate(guarded: Guarded) -> None:
    """With both it shows the cluster, without the key it says what is missing."""
    command = [
        sys.executable,
        "-m",
        "cluster.cli",
        "status",
        "--url",
        guarded.server.url,
        "--tls-cert",
        str(guarded.cert),
    ]
    shown = subprocess.run(
        [*command, "--api-key", KEY], cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
    )
    assert shown.returncode == 0, shown.stderr
    assert "decode-0" in shown.stdout
    refused = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)
    assert refused.returncode == 2
    assert "KVFERRY_API_KEY" in refused.stderr


@pytest.mark.parametrize("token", ["", "another-cluster-s-token"])
async def test_a_worker_refuses_whoever_lacks_the_token(guarded: Guarded, token: str) -> None:
    """Every worker, on loopback, where it listens and nowhere else."""
    for worker in guarded.view()["workers"]:
        assert worker["target"].startswith("127.0.0.1:")
        async with open_channel(worker["target"], token) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await rpc.WorkerStub(channel).Status(pb.StatusRequest(), timeout=10)
            assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
        async with open_channel(worker["target"], TOKEN) as channel:
            await rpc.WorkerStub(channel).Status(pb.StatusRequest(), timeout=10)


def test_no_secret_is_shown_anywhere(guarded: Guarded) -> None:
    """Not in what the command printed and logged at debug, not at `/cluster`, not in any process's command line."""
    family = [psutil.Process(guarded.server.process.pid), *psutil.Process(guarded.server.process.pid).children(True)]
    commands = [" ".join(one.cmdline()) for one in family]
    for text in (*guarded.server.lines, json.dumps(guarded.view()), *commands):
        assert "marker" not in text
