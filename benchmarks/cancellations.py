"""Whether anything stays behind when clients leave: hundreds at once, while their KV is crossing, round after round.

    python -m benchmarks.cancellations
    python -m benchmarks.cancellations --requests 60 --rounds 2

The links are told to be slow (--link-bandwidth), so that KV is under way for long. In each round --requests clients ask at
once; some leave at a random moment of --leave-within-s, the others as soon as they have their first token, which comes before
the last of the KV has landed. Then every block, slot and lease must be free within --settle-s, nothing may run or wait, and a
request that nobody cancels must be answered as it was before the first round.

Progress goes to standard error, the result to the last line of standard output, as JSON: for each round how the clients left,
the transfers that the decode workers ended and those of them that were given up, and the time until all was free. Exit code
0: nothing was left, 1: something was, or nothing was cancelled while it crossed, 2: no cluster, 130: interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import partial
from typing import Any

import httpx

from benchmarks.endurance.processes import Reading
from benchmarks.endurance.rest import NotAtRest, come_to_rest
from benchmarks.endurance.session import Session, add_session_options, in_session
from benchmarks.load.client import LoadRequest, send
from benchmarks.load.on_cluster import run_benchmark, say
from benchmarks.load.prompts import random_prompt

OUTPUT_TOKENS = 64
PROBE = LoadRequest(0.0, random_prompt(200, 512, "probe"), 16)
SERVE = ("--kv-cache-memory", "32MiB", "--routing-policy", "least_loaded", "--log-level", "error")
"""All KV is ferried."""
FIRST_TOKEN = b'"text":'


class Leaving(StrEnum):
    """How a client left."""

    IN_TIME = "left at its moment"
    AT_FIRST_TOKEN = "left with its first token"
    TOO_LATE = "was answered before"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Round:
    """What one round has come to. `rest_after_s` is None where the cluster did not come to rest, and `trouble` says why."""

    leavings: dict[str, int]
    num_transfers: int
    num_given_up: int
    rest_after_s: float | None
    descriptors: dict[str, int]
    trouble: str


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.cancellations",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--requests", type=int, default=300, help="at once (default %(default)s)")
    add("--rounds", type=int, default=5, help="default %(default)s")
    add("--prompt-tokens", type=int, default=600, help="default %(default)s")
    add("--leave-within-s", type=float, default=6.0, help="default %(default)s")
    add("--settle-s", type=float, default=20.0, help="until all must be free after a round (default %(default)s)")
    add("--link-bandwidth", default="2MB/s", metavar="RATE", help="of every link (default %(default)s)")
    add_session_options(parser)
    arguments = parser.parse_args(argv)
    for name in ("requests", "rounds", "prompt_tokens", "leave_within_s", "settle_s"):
        if getattr(arguments, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} must be positive")
    return arguments


def moments_of(arguments: argparse.Namespace, number: int) -> list[float | None]:
    """For each client of round `number` when it leaves, None for those that wait for their first token."""
    source = random.Random(f"leave/{arguments.seed}/{number}")
    return [
        source.uniform(0, arguments.leave_within_s) if source.random() < 0.7 else None
        for _ in range(arguments.requests)
    ]


async def ask_and_leave(session: Session, prompt: list[int], moment_s: float | None) -> Leaving:
    """Asks, and closes the connection at its moment, or with the first token."""
    body = {"prompt": prompt, "max_tokens": OUTPUT_TOKENS, "ignore_eos": True, "stream": True, "temperature": 0}
    try:
        async with asyncio.timeout(moment_s if moment_s is not None else session.target.timeout_s):
            return await _until_first_token(session.client, body, stays=moment_s is not None)
    except TimeoutError:
        return Leaving.IN_TIME if moment_s is not None else Leaving.FAILED
    except httpx.HTTPError:
        return Leaving.FAILED


async def _until_first_token(client: httpx.AsyncClient, body: dict[str, Any], *, stays: bool) -> Leaving:
    async with client.stream("POST", "/v1/completions", json=body) as response:
        if response.status_code != 200:
            return Leaving.FAILED
        async for part in response.aiter_raw():
            if FIRST_TOKEN in part and not stays:
                return Leaving.AT_FIRST_TOKEN
    return Leaving.TOO_LATE


async def run_round(arguments: argparse.Namespace, session: Session, number: int, expected: str) -> Round:
    """One round, and what is left after it."""
    before = await _transfers(session.client)
    clients = [
        ask_and_leave(session, _prompt(arguments, session, number, place), moment)
        for place, moment in enumerate(moments_of(arguments, number))
    ]
    leavings = Counter(await asyncio.gather(*clients))
    rest_after_s, trouble = None, ""
    try:
        rest_after_s = await come_to_rest(session.client, arguments.settle_s)
    except NotAtRest as failure:
        trouble = str(failure)
    after = await _transfers(session.client)
    answer = await send(session.target, PROBE, time.monotonic())
    if not trouble and (answer.error is not None or answer.text != expected):
        trouble = f"the probe after the round was answered otherwise: {answer.error or 'another text'}"
    session.watch.look(number)
    latest: dict[str, Reading] = {name: rows[-1] for name, rows in session.watch.readings.items()}
    found = Round(
        leavings={leaving.value: count for leaving, count in sorted(leavings.items())},
        num_transfers=after[0] - before[0],
        num_given_up=after[1] - before[1],
        rest_after_s=rest_after_s,
        descriptors={name: one.num_descriptors for name, one in latest.items()},
        trouble=trouble,
    )
    say(f"round {number}: {found}")
    return found


def _prompt(arguments: argparse.Namespace, session: Session, number: int, place: int) -> list[int]:
    return random_prompt(arguments.prompt_tokens, session.vocab_size, f"{arguments.seed}/{number}/{place}")


async def _transfers(client: httpx.AsyncClient) -> tuple[int, int]:
    """Transfers that the decode workers have ended, and those of them that were given up."""
    view = (await client.get("/cluster")).raise_for_status().json()
    statuses = [one["status"] for one in view["workers"] if one["role"] == "decode"]
    return sum(one["num_transfers"] for one in statuses), sum(one["num_transfer_failures"] for one in statuses)


async def run_rounds(arguments: argparse.Namespace, session: Session) -> list[Round]:
    """All rounds, but none after one that left something."""
    known = await send(session.target, PROBE, time.monotonic())
    if known.error is not None:
        raise RuntimeError(f"the first request ended with {known.error}")
    rounds: list[Round] = []
    while len(rounds) < arguments.rounds and not (rounds and rounds[-1].trouble):
        rounds.append(await run_round(arguments, session, len(rounds), known.text))
    return rounds


def troubles_of(rounds: Sequence[Round]) -> list[str]:
    """What went wrong, a sentence each."""
    found = [f"round {number}: {one.trouble}" for number, one in enumerate(rounds) if one.trouble]
    if failed := sum(one.leavings.get(Leaving.FAILED.value, 0) for one in rounds):
        found.append(f"{failed} requests failed")
    if not all(one.num_given_up for one in rounds):
        found.append("a round had no transfer that was cancelled on its way: lower --link-bandwidth")
    first, last = rounds[0].descriptors, rounds[-1].descriptors
    found += [
        f"{name} holds {last[name]} descriptors, after the first round {first[name]}"
        for name in last
        if last[name] > first[name]
    ]
    return found


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """The result's fields, and whether something was left or failed."""
    places = str(max(256, arguments.requests))
    options = [*SERVE, "--link-bandwidth", arguments.link_bandwidth, "--max-concurrent", places]
    rounds = in_session(arguments, options, partial(run_rounds, arguments))
    troubles = troubles_of(rounds)
    for sentence in troubles:
        say(f"cancellations: {sentence}")
    return {"rounds": [asdict(one) for one in rounds], "troubles": troubles}, bool(troubles)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit code."""
    arguments = parse_arguments(argv)
    return run_benchmark("cancellations", arguments, partial(measure, arguments))


if __name__ == "__main__":
    sys.exit(main())
