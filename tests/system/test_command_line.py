"""The command line as a user meets it: help, mistakes, one worker alone, and the end."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import openai
import pytest

from tests.support.oracle import prompt_of
from tests.support.serving import ROOT, serving

pytestmark = pytest.mark.system


def _kvferry(*argv: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "cluster.cli", *argv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=90, check=False)


def test_aggregated(tiny_model: Path) -> None:
    """`--prefill 0` serves with the decode worker alone; when it is stopped, nobody warns of processes that ended."""
    with serving(str(tiny_model), "--prefill", "0", "--kv-cache-memory", "16MiB") as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120)
        answer = client.completions.create(model=tiny_model.name, prompt=prompt_of(99, 250), max_tokens=5)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 99
        assert server.worker("decode-0")["status"]["num_local_prefill_tokens"] >= 99
    assert server.process.returncode == 0
    assert not [line for line in server.lines if "raylet" in line]


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["no-such-model"], "no model 'no-such-model'"),
        (["smollm2-135m", "--device", "cpu", "--prefill", "60", "--decode", "60"], "120 workers are too many"),
        (["smollm2-135m", "--device", "cpu", "--threads-per-worker", "400"], "need 800 cores"),
        (["smollm2-135m", "--device", "cuda", "--prefill", "9", "--decode", "9"], "18 workers need 18 GPUs"),
        (["smollm2-135m", "--ray-address", "127.0.0.1:1"], "cannot join the Ray cluster"),
    ],
)
def test_mistakes_are_one_line_and_exit_status_2(argv: list[str], words: str) -> None:
    """The last line says what is wrong, there is no traceback, and nothing keeps running."""
    ended = _kvferry("serve", *argv, "--port", "0")
    assert ended.returncode == 2, ended.stderr
    assert words in ended.stderr.splitlines()[-1]
    assert "Traceback" not in ended.stderr


def test_a_broken_checkpoint_is_named_before_anything_serves(tiny_model: Path, tmp_path: Path) -> None:
    """A truncated file ends the start with its name."""
    for file in tiny_model.iterdir():
        content = file.read_bytes()
        (tmp_path / file.name).write_bytes(content[: len(content) // 2] if file.suffix == ".safetensors" else content)
    ended = _kvferry("serve", str(tmp_path), "--port", "0")
    assert ended.returncode == 2, ended.stderr
    assert "model.safetensors" in ended.stderr.splitlines()[-1]


def test_a_port_in_use_is_said_at_once(tiny_model: Path) -> None:
    """Before Ray or any worker is started."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        ended = _kvferry("serve", str(tiny_model), "--port", port)
    assert ended.returncode == 2
    assert f"port {port} is in use" in ended.stderr
    assert "starting Ray" not in ended.stderr


def test_help_teaches() -> None:
    """Every verb explains itself, with examples and the environment variables."""
    assert "serve" in _kvferry("--help").stdout
    text = _kvferry("serve", "--help").stdout
    assert "examples:" in text
    assert "KVFERRY_PREFILL" in text


def test_status_without_a_cluster_says_so() -> None:
    """No traceback when nobody answers."""
    ended = _kvferry("status", "--url", "http://127.0.0.1:9")
    assert ended.returncode == 1
    assert "no kvferry answers" in ended.stderr
