"""The example clients, run as a user runs them against a real front over a socket."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import WorkerUnavailable
from router.rpc.server import PublicRpcServer
from tests.support.byte_tokenizer import EOS_ID
from tests.support.certificate import why_not, write_certificate
from tests.support.http_front import MODEL, front_config
from tests.support.rpc_front import BothDoors
from tests.support.scripted_generator import Script, ScriptedGenerator

ROOT = Path(__file__).resolve().parents[1]
LIMIT_S = 60.0
CLIENTS = ["http_client", "grpc_client"]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a client came to."""

    status: int
    output: str
    notes: str


def _doors(text: str = "salt, of course", *, error: Exception | None = None, **settings: Any) -> BothDoors:
    ids = [*text.encode()] if error else [*text.encode(), EOS_ID]
    return BothDoors(ScriptedGenerator(Script(ids, error=error)), front_config(**settings))


async def _run(client: str, *arguments: str, key: str = "") -> Ran:
    environment = {name: value for name, value in os.environ.items() if name != "KVFERRY_API_KEY"}
    process = await asyncio.create_subprocess_exec(
        sys.executable, f"examples/{client}.py", *arguments,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=ROOT,
        env=environment | ({"KVFERRY_API_KEY": key} if key else {}),
    )  # fmt: skip
    try:
        output, notes = await asyncio.wait_for(process.communicate(), LIMIT_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Ran(process.returncode or 0, output.decode(), notes.decode())


@asynccontextmanager
async def _served(doors: BothDoors, client: str) -> AsyncIterator[tuple[str, str]]:
    """The arguments with which a client finds its door, which is open for as long."""
    if client == "http_client":
        with doors.served() as http:
            yield "--url", http.url
        return
    server = PublicRpcServer(doors.front, doors.config)
    try:
        yield "--target", f"127.0.0.1:{await server.start()}"
    finally:
        await server.stop(0)


@pytest.mark.parametrize("client", CLIENTS)
async def test_an_answer_goes_to_the_terminal_and_its_cost_follows(client: str) -> None:
    """The answer alone on standard output; the model is asked for."""
    doors = _doors()
    async with _served(doors, client) as place:
        ran = await _run(client, *place, "Why?", "--max-tokens", "20", "--temperature", "0")
    assert (ran.status, ran.output) == (0, "salt, of course\n")
    prompt_tokens = doors.generator.requests[0].num_prompt_tokens
    assert ran.notes == f"{MODEL}: {prompt_tokens} tokens in the prompt, 16 in the answer\n"
    (request,) = doors.generator.requests
    assert (request.stop.max_tokens, request.sampling.temperature) == (20, 0.0)


@pytest.mark.parametrize("client", CLIENTS)
async def test_a_key_is_read_from_the_environment(client: str) -> None:
    """With the right one there is an answer; without, one line says why not."""
    async with _served(_doors(api_keys=("sk-right",)), client) as place:
        assert (await _run(client, *place, "Why?", key="sk-right")).output == "salt, of course\n"
        ran = await _run(client, *place, "Why?")
    assert (ran.status, ran.output) == (1, "")
    assert ran.notes.startswith("error: invalid_api_key: ")
    assert ran.notes.count("\n") == 1


@pytest.mark.parametrize("client", CLIENTS)
async def test_an_error_within_the_answer_is_told(client: str) -> None:
    """After what was answered, as one line."""
    async with _served(_doors("sa", error=WorkerUnavailable("worker 3 is gone")), client) as place:
        ran = await _run(client, *place, "Why?")
    assert (ran.status, ran.output) == (1, "sa\n")
    assert ran.notes.startswith("error: ")
    assert "worker 3 is gone" in ran.notes


@pytest.mark.parametrize(("client", "option"), [("http_client", "--url"), ("grpc_client", "--target")])
async def test_a_server_that_is_not_there_is_one_line(client: str, option: str) -> None:
    """No stack trace."""
    ran = await _run(client, option, "http://127.0.0.1:1" if option == "--url" else "127.0.0.1:1", "Why?")
    assert (ran.status, ran.output) == (1, "")
    assert ran.notes.startswith("error: ")
    assert "Traceback" not in ran.notes


@pytest.mark.parametrize("client", CLIENTS)
async def test_wrong_arguments_are_explained(client: str) -> None:
    """Status 2 and a usage line; `--help` names every option."""
    wrong, told = await _run(client), await _run(client, "--help")
    assert (wrong.status, told.status) == (2, 0)
    assert "usage: " in wrong.notes
    assert all(option in told.output for option in ("--model", "--api-key", "--max-tokens", "--timeout"))


@pytest.mark.skipif(bool(why_not()), reason=why_not())
async def test_the_grpc_client_speaks_tls(tmp_path: Path) -> None:
    """To a server whose certificate it is told to trust."""
    made = write_certificate(tmp_path, "IP:127.0.0.1")
    doors = _doors(tls_cert=str(made.cert), tls_key=str(made.key))
    async with _served(doors, "grpc_client") as place:
        ran = await _run("grpc_client", *place, "--tls-ca", str(made.cert), "Why?")
    assert (ran.status, ran.output) == (0, "salt, of course\n")
