"""A cluster of its own for an endurance run: a tiny model unless another is named, its processes watched, its port open."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TypeVar

import httpx
import psutil

from benchmarks.endurance.processes import Watch, processes_of
from benchmarks.endurance.tiny_model import VOCAB_SIZE, write_tiny_model
from benchmarks.load.client import LoadRequest, Target, first_model, send
from benchmarks.load.on_cluster import say
from benchmarks.load.prompts import random_prompt
from benchmarks.load.serve import local_command, served

TINY = "tiny"
WARM_UP_PROMPT_TOKENS, WARM_UP_TOKENS = 100, 4

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Session:
    """What a run works with. Random prompts are ids below `vocab_size`."""

    target: Target
    watch: Watch
    vocab_size: int

    @property
    def client(self) -> httpx.AsyncClient:
        """To the cluster's HTTP server."""
        return self.target.client

    async def ask(self, key: str, prompt_tokens: int, output_tokens: int, due_at: float) -> str | None:
        """Asks once, with the prompt that `key` stands for; what went wrong, or None."""
        prompt = random_prompt(prompt_tokens, self.vocab_size, key)
        return (await send(self.target, LoadRequest(0.0, prompt, output_tokens), due_at)).error


def add_session_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--model`, `--vocab-size`, `--seed`, `--timeout-s`, and what stands after `--`."""
    add = parser.add_argument
    add("--model", default=TINY, help="`tiny` makes a small random one (default), else as `kvferry serve` takes it")
    add("--vocab-size", type=int, default=VOCAB_SIZE, help="prompts are ids from [256, this), default %(default)s")
    add("--seed", type=int, default=0, help="of the load")
    add("--timeout-s", type=float, default=120.0, help="for each request (default %(default)s)")
    add("serve", nargs="*", help="further options of `kvferry serve`, after --")


def in_session(arguments: argparse.Namespace, options: list[str], run: Callable[[Session], Awaitable[Found]]) -> Found:
    """Starts a cluster with `options` and those of the command line, runs, and stops it. Raises `RuntimeError` when it does not
    get ready or answer, and what `run` raises.
    """
    with TemporaryDirectory(prefix="kvferry-endurance-") as directory:
        model = str(write_tiny_model(Path(directory))) if arguments.model == TINY else arguments.model
        command = local_command([model, *options, *arguments.serve])
        say(" ".join(command[1:]))
        with served(command) as url:
            return asyncio.run(_run(url, arguments, run))


async def _run(url: str, arguments: argparse.Namespace, run: Callable[[Session], Awaitable[Found]]) -> Found:
    unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=arguments.timeout_s, limits=unlimited) as client:
        target = Target(client, await first_model(client), arguments.timeout_s)
        view = (await client.get("/cluster")).raise_for_status().json()
        watch = Watch(processes_of(view, psutil.Process()))
        session = Session(target, watch, arguments.vocab_size)
        if error := await session.ask("warm-up", WARM_UP_PROMPT_TOKENS, WARM_UP_TOKENS, 0.0):
            raise RuntimeError(f"the first request ended with {error}")
        return await run(session)
