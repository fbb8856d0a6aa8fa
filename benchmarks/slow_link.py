"""What a slow link costs a request, and what fewer bytes of KV save: two hosts on one machine, a cable of a given rate.

    python -m benchmarks.slow_link --rate-mbit 25 --prompt-tokens 1024
    python -m benchmarks.slow_link --rate-mbit 25 --prompt-tokens 1024 --budgets 1.0 --push chunks end
    python -m benchmarks.slow_link --rate-mbit 100 --prompt-tokens 2048 --budgets 1.0 0.5 0.3 -- --slot-memory 1MiB

Needs root, `ip` and `tc`. Two network namespaces are joined by a veth pair that lets no more than the rate through in
either direction; a Ray node runs in each, on a core of its own, the prefill worker on one side and the decode worker on the
other. Requests with distinct random prompts go out one at a time, after a warm-up, and every budget has its turn before the
next request. `--push` says when KV leaves the prefill worker; with both, each has a cluster of its own, one after the other.
What stands after `--` goes to `kvferry serve`. All that was set up is removed at the end.

* `ttft_s`, `second_token_s`, `gap_s`: as the client sees them; the gap is what the link adds, and a decode step.
* `kv_bytes`: what landed, headers included, by the decode worker's count.
* `hidden_ratio`: the share of the KV that had landed and been acknowledged when the prefill worker sampled the first token,
  by its own count.
* `cable_start_s`, `cable_end_s`, `rate_mbit`: when the busier direction of the cable began and ended to carry it, since the
  request was sent, and how fast; `cable_hidden_ratio` is the share of it that had crossed before the client's first token.
* `is_prefill_beside_router`: Ray chooses the sides. Where it is false the first token crosses with the KV, and waits for it.
* `gap_ratio`: the gap at the smallest budget over that at 1.0. With a cache of 16 bits, 1.0 is lossless.
* `tail_ratio`: the gap of what was pushed in chunks over that of what was sent at the end. None where Ray chose the sides
  differently for the two.

In the result, `pushes` has all rows. `gap_ratio` and `hidden_ratio` beside it are those of chunks where they were measured;
`hidden_ratio` and `tail_ratio` are at the largest budget, `tail_ratios` has every one.

Progress and a table of medians go to standard error, the result to the last line of standard output as JSON. Exit code 0:
every request ended well, 1: some failed, 2: the hosts or the cluster cannot be had, 130: it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from types import FrameType
from typing import Any

from benchmarks.links.asking import Answer, Question
from benchmarks.links.results import Rows, by_budget, gap_ratio, table, tail_ratios
from benchmarks.links.serving import serving
from benchmarks.links.two_hosts import ROOT, Host, two_hosts, why_not
from benchmarks.machine import machine_facts
from engine.checkpoint.demo_model import ALIAS
from engine.checkpoint.resolve import resolve_model
from prefill_worker.config import Push
from protocol.errors import KvferryError

CLIENT_START_WITHIN_S = 60.0
INTERRUPTED = 130


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.slow_link", description="time to the second token over a link of a given rate"
    )
    parser.add_argument(
        "--rate-mbit", type=float, default=25.0, help="of the cable, each direction (default %(default)s)"
    )
    parser.add_argument("--prompt-tokens", type=int, default=1024, help="default %(default)s")
    parser.add_argument("--output-tokens", type=int, default=8, help="default %(default)s")
    parser.add_argument("--budgets", type=float, nargs="+", default=[1.0, 0.3], help="default %(default)s")
    parser.add_argument(
        "--push",
        choices=[one.value for one in Push],
        nargs="+",
        default=[Push.CHUNKS.value],
        help="when KV leaves the prefill worker; several have a cluster each (default chunks)",
    )
    parser.add_argument("--requests", type=int, default=3, help="of each budget (default %(default)s)")
    parser.add_argument("--model", default=ALIAS, help="default %(default)s")
    parser.add_argument("--kv-dtype", default="float16", help="of both workers' caches (default %(default)s)")
    parser.add_argument("--vocab-size", type=int, default=32000, help="prompts are ids from [256, this)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout-s", type=float, default=120.0, help="for each request (default %(default)s)")
    parser.add_argument("serve", nargs="*", help="further arguments of `kvferry serve`, after --")
    arguments = parser.parse_args(argv)
    arguments.push = [Push(word) for word in dict.fromkeys(arguments.push)]
    for name in ("rate_mbit", "prompt_tokens", "requests", "timeout_s"):
        if getattr(arguments, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} must be positive")
    if arguments.output_tokens < 2:
        parser.error("--output-tokens must be at least 2: the second token is what is waited for")
    if any(not 0 < budget <= 1 for budget in arguments.budgets):
        parser.error("--budgets must be in (0, 1]")
    if any(one.split("=")[0] == "--kv-push" for one in arguments.serve):
        parser.error("--kv-push is set by --push, which may stand before the --")
    return arguments


def serve_options(arguments: argparse.Namespace, push: Push) -> list[str]:
    """What `kvferry serve` is told: lossless unless a request asks for less."""
    least = min(arguments.budgets)
    lossy = ["--kv-wire-min-budget", f"{least:g}", "--kv-wire-int4", "on"] if least < 1 else []
    return [arguments.model, "--kv-dtype", arguments.kv_dtype, "--kv-push", push.value, *lossy, *arguments.serve]


def questions(arguments: argparse.Namespace) -> list[Question]:
    """A warm-up for each budget, then the rounds: in each of them every budget has its turn."""

    def question(budget: float, number: int) -> Question:
        return Question(
            key=f"slow-link/{arguments.seed}/{budget:g}/{number}",
            budget=budget,
            num_prompt_tokens=arguments.prompt_tokens,
            num_output_tokens=arguments.output_tokens,
            vocab_size=arguments.vocab_size,
            timeout_s=arguments.timeout_s,
            fields={"kv_wire_budget": budget},
            is_warm_up=number == 0,
        )

    return [question(budget, number) for number in range(arguments.requests + 1) for budget in arguments.budgets]


def ask(host: Host, url: str, asked: Sequence[Question]) -> list[Answer]:
    """The answers, asked by a client on the host. Raises `RuntimeError` when it cannot ask them all in time."""
    command = host.command(sys.executable, "-m", "benchmarks.links.asking", url, host.device)
    lines = "".join(json.dumps(asdict(one)) + "\n" for one in asked)
    limit_s = CLIENT_START_WITHIN_S + 2 * sum(one.timeout_s for one in asked)
    try:
        done = subprocess.run(
            command, cwd=ROOT, input=lines, stdout=subprocess.PIPE, text=True, timeout=limit_s, check=True,
            start_new_session=True,
        )  # fmt: skip
    except subprocess.SubprocessError as error:
        raise RuntimeError(f"the client could not ask: {error}") from error
    return [Answer(**json.loads(line)) for line in done.stdout.splitlines()]


def measure(arguments: argparse.Namespace) -> dict[Push, Rows]:
    """Every push on hosts and a cluster of its own; tables as they come."""
    resolve_model(arguments.model, say)  # fetched here: the two hosts have no way out
    found: dict[Push, Rows] = {}
    for push in arguments.push:
        found[push] = by_budget(answers_of(arguments, push), arguments.budgets)
        say(f"push {push}:\n{table(found[push])}")
    for budget, ratio in tail_ratios(found).items():
        say(f"budget {budget:g}: gap of chunks over gap of end: {ratio if ratio is not None else 'not comparable'}")
    return found


def answers_of(arguments: argparse.Namespace, push: Push) -> list[Answer]:
    """Sets everything up, asks, and takes it down again."""
    say(f"two hosts, a cable of {arguments.rate_mbit:g} Mbit/s")
    with two_hosts(arguments.rate_mbit) as (head, _):
        say("kvferry across them; the test of the link takes a while on a slow one")
        with serving(head, serve_options(arguments, push)) as url:
            say(f"asking at {url}")
            return ask(head, url, questions(arguments))


def say(sentence: str) -> None:
    """Progress."""
    print(sentence, file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark; the exit code."""
    arguments = parse_arguments(argv)
    if reason := why_not():
        print(f"slow_link: {reason}; run it as root where iproute2 is installed", file=sys.stderr)
        return 2
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _interrupt)
    load_before = os.getloadavg()[0]
    try:
        rows_by_push = measure(arguments)
    except KeyboardInterrupt:
        print("slow_link: interrupted; what it had set up is removed", file=sys.stderr)
        return INTERRUPTED
    except (RuntimeError, OSError, subprocess.SubprocessError, KvferryError) as error:
        print(f"slow_link: {error}", file=sys.stderr)
        return 2
    print(
        json.dumps(result(arguments, rows_by_push) | {"load_before": round(load_before, 2), "machine": machine_facts()})
    )
    every_row = [row for rows in rows_by_push.values() for row in rows.values()]
    return 1 if any(row["errors"] or not row["requests"] for row in every_row) else 0


def result(arguments: argparse.Namespace, rows_by_push: dict[Push, Rows]) -> dict[str, Any]:
    """The result's fields."""
    push = Push.CHUNKS if Push.CHUNKS in rows_by_push else arguments.push[0]
    rows, largest = rows_by_push[push], max(arguments.budgets)
    ratios = tail_ratios(rows_by_push)
    return {
        "benchmark": "slow_link",
        "options": vars(arguments),
        "gap_ratio": gap_ratio(rows),
        "hidden_ratio": rows[largest]["hidden_ratio"],
        "tail_ratio": ratios.get(largest),
        "tail_ratios": {f"{budget:g}": ratio for budget, ratio in ratios.items()},
        "pushes": {
            one.value: {"gap_ratio": gap_ratio(own), "budgets": {f"{budget:g}": row for budget, row in own.items()}}
            for one, own in rows_by_push.items()
        },
    }


def _interrupt(number: int, frame: FrameType | None) -> None:
    """The first signal ends the run; what follows must not cut the removal short, every step of which has a deadline."""
    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
