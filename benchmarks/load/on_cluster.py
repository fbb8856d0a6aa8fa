"""A cluster of its own for each load: started, warmed up, asked, and looked at before it is stopped."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import httpx

from benchmarks.load.client import LoadRequest, Target, first_model, send
from benchmarks.load.interruption import INTERRUPTED, interrupt_once
from benchmarks.load.serve import local_command, served
from benchmarks.load.worker_counts import WorkerCounts, counts_of, counts_since
from benchmarks.machine import machine_facts
from engine.checkpoint.demo_model import ALIAS
from protocol.errors import KvferryError

WARM_UP = "One after the other, the lamps along the quay were lit. " * 8
WARM_UP_TOKENS = 4
COUNTS_SETTLE_S = 1.5
"""What the router knows of a worker is at most a second old."""

Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class OnCluster(Generic[Found]):
    """What a load has found, and what each worker counted meanwhile."""

    found: Found
    workers: WorkerCounts


def add_cluster_options(parser: argparse.ArgumentParser) -> None:
    """Adds `--model`, `--seed`, `--timeout-s`, `--smoke`, and what stands after `--`."""
    parser.add_argument("--model", default=ALIAS, help="default %(default)s")
    parser.add_argument("--seed", type=int, default=0, help="of the load")
    parser.add_argument("--timeout-s", type=float, default=600.0, help="for each request (default %(default)s)")
    parser.add_argument(
        "--smoke", action="store_true", help="a tiny load, in under a minute: says whether it runs at all"
    )
    parser.add_argument("serve", nargs="*", help="further options of `kvferry serve`, after --")


def check_serve_options(parser: argparse.ArgumentParser, given: Sequence[str], taken: Sequence[str]) -> None:
    """Ends the program with code 2 when what stands after `--` has an option that the benchmark sets itself."""
    if both := sorted({one.split("=")[0] for one in given} & {*taken}):
        parser.error(f"{', '.join(both)} cannot stand after --: the benchmark sets it")


def on_cluster(options: Sequence[str], timeout_s: float, ask: Callable[[Target], Awaitable[Found]]) -> OnCluster[Found]:
    """Starts a cluster with these options of `kvferry serve`, the model first, and asks it. It is gone afterwards.

    Raises `RuntimeError` when it does not get ready or does not answer at all, `httpx.HTTPError` when it cannot be reached.
    """
    say(f"kvferry serve {' '.join(options)}")
    with served(local_command(options)) as url:
        return asyncio.run(_ask(url, timeout_s, ask))


async def _ask(url: str, timeout_s: float, ask: Callable[[Target], Awaitable[Found]]) -> OnCluster[Found]:
    unlimited = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=timeout_s, limits=unlimited) as client:
        target = Target(client, await first_model(client), timeout_s)
        warm_up = await send(target, LoadRequest(0.0, WARM_UP, WARM_UP_TOKENS), 0.0)
        if warm_up.error is not None:
            raise RuntimeError(f"the first request ended with {warm_up.error}")
        before = await _settled_counts(client)
        found = await ask(target)
        return OnCluster(found, counts_since(before, await _settled_counts(client)))


async def _settled_counts(client: httpx.AsyncClient) -> WorkerCounts:
    await asyncio.sleep(COUNTS_SETTLE_S)
    response = await client.get("/cluster")
    return counts_of(response.raise_for_status().json())


def run_benchmark(name: str, arguments: argparse.Namespace, measure: Callable[[], tuple[dict[str, Any], bool]]) -> int:
    """Prints the fields that `measure` returns as the last line. The exit code: 0 when every request ended well, 1 when one
    failed, which is what `measure` says too, 2 when a cluster cannot be had, 130 when it was interrupted.
    """
    interrupt_once()
    load_before = os.getloadavg()[0]
    try:
        fields, has_failed = measure()
    except KeyboardInterrupt:
        say(f"{name}: interrupted; its cluster is stopped")
        return INTERRUPTED
    except (RuntimeError, OSError, ValueError, subprocess.SubprocessError, httpx.HTTPError, KvferryError) as error:
        say(f"{name}: {error}")
        return 2
    options = {key: str(value) if isinstance(value, os.PathLike) else value for key, value in vars(arguments).items()}
    told = {"benchmark": name, "options": options, **fields}
    print(json.dumps(told | {"load_before": round(load_before, 2), "machine": machine_facts()}))
    return 1 if has_failed else 0


def say(sentence: str) -> None:
    """Progress, on standard error."""
    print(sentence, file=sys.stderr, flush=True)
