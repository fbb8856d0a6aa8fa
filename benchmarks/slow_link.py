"""What a slow link costs a request, and what pushing KV early, a plan, and fewer bytes of KV save: two hosts on one machine, a
cable of a given rate.

    python -m benchmarks.slow_link --rate-mbit 100 --prompt-tokens 1024
    python -m benchmarks.slow_link --rate-mbit 25 --prompt-tokens 1024 --budgets 1.0 0.3 --push chunks
    python -m benchmarks.slow_link --rate-mbit 25 --compete
    python -m benchmarks.slow_link --all
    python -m benchmarks.slow_link --rate-mbit 100 --prompt-tokens 2048 --push chunks -- --slot-memory 1MiB

Needs root, `ip` and `tc`. Two network namespaces are joined by a veth pair that lets no more than the rate through in
either direction; a Ray node runs in each, on a core of its own, the prefill worker beside the router and the client, the
decode worker on the other side. `--push` says when KV leaves the prefill worker: (a) `end`, all of it once the prompt is
read, (b) `chunks`, as it is computed, (c) `planned`, the same with bandwidth reserved; each has a cluster of its own, one
after the other. Requests with distinct random prompts go out one at a time, after warm-ups, and every length and budget has
its turn before the next request. What stands after `--` goes to `kvferry serve`. All that was set up is removed at the end.

* `ttft_s`, `second_token_s`, `gap_s`: as the client sees them; the gap is what the link adds, and a decode step.
* `late_s`: how long KV went on crossing after the first token: the part of the gap that is the link's.
* `kv_bytes`: what landed, headers included, by the decode worker's count.
* `production_mbit`: `kv_bytes` over `ttft_s`: a link that is slower cannot hide the transfer.
* `hidden_ratio`: the share of the KV that had landed and been acknowledged when the prefill worker sampled the first token,
  by its own count.
* `reserved_bytes_per_second`, `achieved_bytes_per_second`: of planned transfers, by the router's count; of others what the
  cable carried.
* `cable_start_s`, `cable_end_s`, `rate_mbit`: when the busier direction of the cable began and ended to carry it, since the
  request was sent, and how fast; `cable_hidden_ratio` is the share of it that had crossed before the client's first token.

In the result, `pushes` has all rows, by push, length and budget. The ratios stand on top for the first length, and under
`prompts` for each: `hidden_ratio` (of (c) where it was measured, at the largest budget), `tail_ratio` (the gap of (c) over that
of (a), at the largest budget; `tail_ratios` has every one), `chunks_tail_ratio` ((b) over (a)) and `gap_ratio` (the gap at the
smallest budget over that at 1.0, which is lossless with a cache of 16 bits).

`--compete` has two prefill workers on one core and one decode worker. A long prompt goes to the one and, while its KV
crosses, a short one to the other. Rounds count in which the long one's second token came after the short one's and each
worker had one of them. `compete_ratio` is the short one's time to the second token under (c) over that under (b).

`--all` measures rates of 25, 100 and 1000 with prompts of 256 to 2,048 tokens, and the competition at 25 and 100, in 13
clusters: with `--requests 1` some 20 minutes where one core reads 215 tokens a second. The result has `rates` and
`competition`, by rate.

Progress and all medians go to standard error, a table in Markdown to standard output, whose last line is the result as JSON.
Exit code 0: every request ended well, 1: some failed, 2: the hosts or the cluster cannot be had, 130: it was interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from typing import Any

from benchmarks.links import competition, results
from benchmarks.links.competition import Competition
from benchmarks.links.options import (
    ALL_RATES_MBIT,
    COMPETING_PUSHES,
    COMPETING_RATES_MBIT,
    parse_arguments,
    questions,
    rounds_of,
    serve_options,
)
from benchmarks.links.report import report
from benchmarks.links.results import Measured
from benchmarks.links.runs import answers_of_rounds, answers_to
from benchmarks.links.two_hosts import Host, two_hosts, why_not
from benchmarks.load.interruption import INTERRUPTED, interrupt_once
from benchmarks.machine import machine_facts
from engine.checkpoint.resolve import resolve_model
from protocol.errors import KvferryError


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Measures what was asked for; the result's fields and whether a request failed."""
    resolve_model(arguments.model, say)  # fetched here: the two hosts have no way out
    if arguments.all:
        return _measure_all(arguments)
    say(f"two hosts, a cable of {arguments.rate_mbit:g} Mbit/s")
    with two_hosts(arguments.rate_mbit) as (head, _):
        if arguments.compete:
            rows = _compete(arguments, head, arguments.rate_mbit)
            print(report({}, {arguments.rate_mbit: rows}), flush=True)
            return competition.competition_result(rows), competition.has_failed(rows)
        measured = _ask_each_push(arguments, head)
    print(report({arguments.rate_mbit: measured}, {}), flush=True)
    return results.result(measured), results.has_failed(measured)


def _measure_all(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """Every rate; the tables, as far as they go, also when it is interrupted."""
    measured: dict[float, Measured] = {}
    competitions: dict[float, Competition] = {}
    try:
        for rate_mbit in ALL_RATES_MBIT:
            say(f"two hosts, a cable of {rate_mbit:g} Mbit/s")
            with two_hosts(rate_mbit) as (head, _):
                measured[rate_mbit] = _ask_each_push(arguments, head)
                if rate_mbit in COMPETING_RATES_MBIT:
                    competitions[rate_mbit] = _compete(arguments, head, rate_mbit)
    finally:
        print(report(measured, competitions), flush=True)
    fields = {
        "rates": {f"{rate:g}": results.result(found) for rate, found in measured.items()},
        "competition": {f"{rate:g}": competition.competition_result(rows) for rate, rows in competitions.items()},
    }
    failures = [results.has_failed(found) for found in measured.values()]
    return fields, any([*failures, *(competition.has_failed(rows) for rows in competitions.values())])


def _ask_each_push(arguments: argparse.Namespace, head: Host) -> Measured:
    """A cluster for each push; a table after each."""
    measured: Measured = {}
    for push in arguments.push:
        answers = answers_to(head, serve_options(arguments, push), questions(arguments, push), say)
        measured[push] = results.by_prompt(answers, arguments.prompt_tokens, arguments.budgets)
        say(f"push {push}:\n{results.table(measured[push])}")
    return measured


def _compete(arguments: argparse.Namespace, head: Host, rate_mbit: float) -> Competition:
    """A cluster with two prefill workers for each push."""
    rows: Competition = {}
    for push in COMPETING_PUSHES if arguments.all else arguments.push:
        say(f"two prefill workers compete, push {push}")
        rounds = rounds_of(arguments, rate_mbit, push)
        rows[push] = competition.row_of(answers_of_rounds(head, serve_options(arguments, push), rounds, say))
    return rows


def say(sentence: str) -> None:
    """Progress."""
    print(sentence, file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark; the exit code."""
    arguments = parse_arguments(argv)
    if reason := why_not():
        print(f"slow_link: {reason}; run it as root where iproute2 is installed", file=sys.stderr)
        return 2
    interrupt_once()
    load_before = os.getloadavg()[0]
    try:
        fields, has_failed = measure(arguments)
    except KeyboardInterrupt:
        print("slow_link: interrupted; what it had set up is removed", file=sys.stderr)
        return INTERRUPTED
    except (RuntimeError, OSError, subprocess.SubprocessError, KvferryError) as error:
        print(f"slow_link: {error}", file=sys.stderr)
        return 2
    told = {"benchmark": "slow_link", "options": vars(arguments), **fields}
    print(json.dumps(told | {"load_before": round(load_before, 2), "machine": machine_facts()}))
    return 1 if has_failed else 0


if __name__ == "__main__":
    sys.exit(main())
