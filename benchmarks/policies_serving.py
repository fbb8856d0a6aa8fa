"""Scheduling policies against each other on a cluster that is started as a user would start it, near saturation.

    python -m benchmarks.policies_serving
    python -m benchmarks.policies_serving --policies fcfs spf --load 0.8 --requests 200
    python -m benchmarks.policies_serving --trace azure_conv_2023.csv --context 1024
    python -m benchmarks.policies_serving --smoke
    python -m benchmarks.policies_serving -- --prefill 0

`benchmarks.policies` compares them on a virtual clock, at many loads; this confirms one load of it. Prompts of random ids,
85 of 100 of them of 24 to 72 tokens and the others of 512 to 896, or a seeded sample of a trace with its lengths scaled to
--context, are sent when they are due, whatever has become of earlier ones. A first cluster, under `fcfs`, is given a backlog to
find out how fast prompts are read; the load is --load of that rate, unless --rate says another. Then a cluster for each policy
(--prefill-policy and --decode-policy), one after the other, gets the same requests at the same times. What stands after `--`
goes to `kvferry serve`.

The table is Markdown, on standard output, and the result its last line, as JSON: by policy the spread of TTFT in all and of
the longest and the shortest tenth, and of the time to the end; what the workers counted; every TTFT `over_fcfs`; and the
`expectations` of `benchmarks.policies`. Whether the decode worker reads prompts itself, which it may where that is quicker,
is in its `num_local_prefill_tokens`.

By default 6 clusters, which takes about 10 minutes where a core reads 215 tokens a second. Exit code 0: every request ended
well, 1: some failed, 2: no cluster or no trace, 130: interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.load.client import LoadRequest, Target, run_open_loop
from benchmarks.load.on_cluster import add_cluster_options, check_serve_options, on_cluster, run_benchmark, say
from benchmarks.load.statistics import RequestRecord
from benchmarks.load.traces import read_trace
from benchmarks.policy.served import (
    PolicyServed,
    TwoLengths,
    at_once,
    comparison,
    requests_at_rate,
    saturation_per_s,
    served_figures,
    table,
    two_lengths,
)
from benchmarks.policy.workload import Workload, sample
from scheduling.policies.choose import SERVING_POLICIES

DEFAULT_POLICIES = ("fcfs", "spf", "spf-aging", "sjf", "qba")
SMOKE_POLICIES = ("fcfs", "spf")
SMOKE_LENGTHS = TwoLengths(short=(8, 16), long=(64, 96), output=(2, 4))
SMOKE_RATE = 2.0
OWN_OPTIONS = ("--prefill-policy", "--decode-policy")


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line, with the defaults of its mode."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policies_serving",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    defaults = f"default {' '.join(DEFAULT_POLICIES)}; with --smoke: {' '.join(SMOKE_POLICIES)}"
    add("--policies", nargs="+", choices=SERVING_POLICIES, help=defaults)
    add("--load", type=float, default=0.9, help="share of the rate at which prompts are read (default %(default)s)")
    add("--rate", type=float, help="mean requests a second instead of --load: no cluster to find the rate")
    add("--requests", type=int, help="of each policy, default 110, with --smoke 6")
    add("--backlog", type=int, default=24, help="requests that find the rate (default %(default)s)")
    add("--trace", type=Path, help="Azure CSV or Mooncake JSONL instead of two lengths, at its own times")
    add("--context", type=int, default=1024, help="tokens of the trace's longest sequence (default %(default)s)")
    add("--vocab-size", type=int, default=32000, help="prompts are ids from [256, this)")
    add_cluster_options(parser)
    arguments = parser.parse_args(argv)
    chosen = arguments.policies or (SMOKE_POLICIES if arguments.smoke else DEFAULT_POLICIES)
    arguments.policies = [*dict.fromkeys(chosen)]
    if arguments.requests is None:
        arguments.requests = 6 if arguments.smoke else 110
    if arguments.smoke and arguments.rate is None:
        arguments.rate = SMOKE_RATE
    for name in ("load", "rate", "backlog", "context", "timeout_s"):
        if (value := getattr(arguments, name)) is not None and value <= 0:
            parser.error(f"--{name} must be positive")
    if arguments.requests < 2:
        parser.error("--requests must be at least 2: fewer have no rate")
    check_serve_options(parser, arguments.serve, OWN_OPTIONS)
    return arguments


def workload_of(arguments: argparse.Namespace) -> Workload:
    """The load, determined by the arguments alone. Raises `OSError` and `ValueError` for a trace that cannot be used."""
    if arguments.trace is not None:
        rows = read_trace(arguments.trace)
        return sample(arguments.trace.name, rows, arguments.requests, arguments.context, arguments.seed)
    return two_lengths(SMOKE_LENGTHS if arguments.smoke else TwoLengths(), arguments.requests, arguments.seed)


def serve_options(arguments: argparse.Namespace, policy: str) -> list[str]:
    """What `kvferry serve` is told."""
    return [arguments.model, "--prefill-policy", policy, "--decode-policy", policy, *arguments.serve]


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """A cluster after the other; the result's fields and whether a request failed."""
    workload = workload_of(arguments)
    saturation = None if arguments.rate is not None else _find_saturation(arguments, workload)
    rate = arguments.rate if saturation is None else arguments.load * saturation
    say(f"{workload.name}: {len(workload.jobs)} requests at {rate:.3f} a second")
    served = {name: _serve(arguments, workload, name, rate) for name in arguments.policies}
    print(table(served), flush=True)
    fields = {
        "workload": workload.name,
        "scale": round(workload.scale, 4),
        "prompt_tokens": sum(job.num_prompt for job in workload.jobs),
        "output_tokens": sum(job.num_output for job in workload.jobs),
        "saturation_per_s": saturation and round(saturation, 4),
        "rate_per_s": round(rate, 4),
    }
    return fields | comparison(served), any(one.has_failed for one in served.values())


def _find_saturation(arguments: argparse.Namespace, workload: Workload) -> float:
    backlog = at_once(workload, arguments.backlog, arguments.vocab_size, arguments.seed)
    options = serve_options(arguments, "fcfs")
    answered = on_cluster(options, arguments.timeout_s, partial(_send, requests=backlog))
    saturation = saturation_per_s(workload, backlog, answered.found[0])
    say(f"prompts are read at {saturation:.3f} requests a second")
    return saturation


def _serve(arguments: argparse.Namespace, workload: Workload, policy: str, rate: float) -> PolicyServed:
    requests = requests_at_rate(workload, rate, arguments.vocab_size, arguments.seed)
    ask = partial(_send, requests=requests)
    answered = on_cluster(serve_options(arguments, policy), arguments.timeout_s, ask)
    served = PolicyServed(served_figures(workload, *answered.found), answered.workers)
    say(table({policy: served}))
    return served


async def _send(target: Target, requests: list[LoadRequest]) -> tuple[list[RequestRecord], float]:
    return await run_open_loop(target, requests, _tell)


def _tell(record: RequestRecord) -> None:
    first = "no token" if record.ttft_s is None else f"first token after {record.ttft_s:.2f} s"
    say(f"  {record.prompt_tokens} tokens: {record.error or first}")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit code."""
    arguments = parse_arguments(argv)
    return run_benchmark("policies_serving", arguments, partial(measure, arguments))


if __name__ == "__main__":
    sys.exit(main())
