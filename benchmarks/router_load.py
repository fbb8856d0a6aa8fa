"""The router by itself: how much of a bare server's rate it reaches, and what it adds to a token's way.

    python -m benchmarks.router_load
    python -m benchmarks.router_load --rounds 9 --round-s 5 --loop uvloop
    python -m benchmarks.router_load --profile profile.txt

The workers are processes that speak the real gRPC wire but have no model: they answer at once. The router is the real
router process with the model's tokenizer, kept on one core; client and workers share the next one (or have one each,
where there are three). What it is compared with is FastAPI's shortest program that streams the router's own bytes from
the same server on the same core. Rounds of the two alternate, and the ratio is that of their medians.

* `ratio_to_bare`: answers of 16 tokens a second, router by bare server; 0.5 or more is wanted. `cpu_ratio_to_bare` is the
  same by processor time for each answer: what the ratio would be on a machine with nothing else to do.
* `added_p50_ms`, `added_p99_ms`: from a decode step's end in the worker's process to the token's arrival at the client,
  with 200 streams of 20 tokens a second, all on one beat, as a decode batch gives them; below 25 at p99 is wanted. The
  last token of a batch waits for the 199 before it. `bare_added_*` is the same for the bare server, without a worker.
  `cpu_us_per_streamed_token` is the processor time of it: times 200 it is the least that p99 can be.
* `max_loop_lag_ms`: how much later than asked a task of the router's loop ran that slept 1 ms, while prompts of 100 kB
  came; nothing may block the loop for more than 5 ms. `loop_cpu_ms_of_max` is the processor time that the loop's thread
  used in that gap: the rest is time that another thread or another process had. `max_loop_cpu_ms` is the most that it used
  in any gap, that is, the longest that its own calls can have blocked it. Where stalls were is in the table.

With `--in-process` the workers' clients answer inside the router's process: what is gained is the price of gRPC.
Progress and a table go to standard error, the result to the last line of standard output as JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.door.measure import Doors, LoadPlan, Outcome, measure
from benchmarks.door.stage import Stage
from benchmarks.machine import machine_facts
from engine.checkpoint.demo_model import ALIAS
from engine.checkpoint.resolve import resolve_model
from protocol.errors import KvferryError

WANTED_RATIO = 0.5
WANTED_P99_MS = 25.0
WANTED_LAG_MS = 5.0
BUSY_SHARE = 0.9


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.router_load", description="throughput and latency of the router without a model"
    )
    parser.add_argument("--model", default=ALIAS, help="whose tokenizer and chat template (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of each server (default %(default)s)")
    parser.add_argument("--round-s", type=float, default=3.0, help="length of a round (default %(default)s)")
    parser.add_argument("--connections", type=int, default=64, help="answers asked for at once (default %(default)s)")
    parser.add_argument("--streams", type=int, default=200, help="paced streams (default %(default)s)")
    parser.add_argument("--tokens-per-s", type=float, default=20.0, help="of each stream (default %(default)s)")
    parser.add_argument("--stream-s", type=float, default=10.0, help="length of the streams (default %(default)s)")
    parser.add_argument("--prompt-bytes", type=int, default=100_000, help="of the long prompts (default %(default)s)")
    parser.add_argument("--loop", choices=("own", "uvloop"), default="own", help="the router's event loop")
    parser.add_argument("--log-level", default="info", help="the router's (default %(default)s, as kvferry serve)")
    parser.add_argument("--in-process", action="store_true", help="no gRPC: clients answer in the router's process")
    parser.add_argument("--profile", type=Path, help="write what the router's loop spends its time on to this file")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark. Exit code 0: all went well, whatever the figures; 2: it could not be run."""
    arguments = parse_arguments(argv)
    plan = LoadPlan(
        num_rounds=arguments.rounds,
        round_s=arguments.round_s,
        num_connections=arguments.connections,
        num_streams=arguments.streams,
        step_s=1 / arguments.tokens_per_s,
        stream_s=arguments.stream_s,
        prompt_bytes=arguments.prompt_bytes,
        is_profiled=arguments.profile is not None,
    )
    try:
        directory = resolve_model(arguments.model, say).path
        with ExitStack() as stack:
            stage = Stage(str(directory), arguments.loop, arguments.log_level, arguments.in_process)
            doors = stack.enter_context(stage.open(say))
            outcome = run(doors, plan)
    except (KvferryError, OSError, ValueError) as error:
        print(f"router_load: {error}", file=sys.stderr)
        return 2
    if arguments.profile is not None:
        arguments.profile.write_text(outcome.profile, encoding="utf-8")
    print(table(outcome), file=sys.stderr)
    settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(arguments).items()}
    print(json.dumps(figures(outcome) | {"arguments": settings, "machine": machine_facts()}))
    return 0


def run(doors: Doors, plan: LoadPlan) -> Outcome:
    """Measures everything from this process."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(measure(doors, plan, say))


def say(sentence: str) -> None:
    """Progress."""
    print(sentence, file=sys.stderr, flush=True)


def figures(outcome: Outcome) -> dict[str, Any]:
    """The result's fields, rounded."""
    rates, router, bare, lag = outcome.rates, outcome.router_latency, outcome.bare_latency, outcome.lag
    found = {
        "ratio_to_bare": rates.ratio_to_bare,
        "cpu_ratio_to_bare": rates.cpu_ratio_to_bare,
        "answers_per_s": rates.answers_per_s,
        "bare_answers_per_s": rates.bare_answers_per_s,
        "cpu_ms_per_answer": rates.cpu_ms_per_answer,
        "bare_cpu_ms_per_answer": rates.bare_cpu_ms_per_answer,
        "added_p50_ms": 1e3 * router.p50_s,
        "added_p99_ms": 1e3 * router.p99_s,
        "bare_added_p50_ms": 1e3 * bare.p50_s,
        "bare_added_p99_ms": 1e3 * bare.p99_s,
        "cpu_us_per_streamed_token": 1e6 * router.server_cpu_s_per_token,
        "bare_cpu_us_per_streamed_token": 1e6 * bare.server_cpu_s_per_token,
        "max_loop_lag_ms": 1e3 * lag.max_lag_s,
        "loop_cpu_ms_of_max": 1e3 * lag.cpu_s_of_max,
        "max_loop_cpu_ms": 1e3 * lag.max_cpu_s,
        "idle_loop_lag_ms": 1e3 * outcome.idle_lag.max_lag_s,
        "client_cpu_share": outcome.client_cpu_share,
        "workers_cpu_share": outcome.workers_cpu_share,
    }
    rounded = {name: round(value, 3) for name, value in found.items()}
    return {"benchmark": "router_load", **rounded, "num_loop_stalls": lag.num_stalls, "router_loop": outcome.loop_name}


def table(outcome: Outcome) -> str:
    """The result for people."""
    f = figures(outcome)
    lines = [
        f"{'':34}{'router':>10}{'bare':>10}",
        f"{'answers of 16 tokens a second':34}{f['answers_per_s']:>10.0f}{f['bare_answers_per_s']:>10.0f}"
        f"   ratio {f['ratio_to_bare']:.2f}, wanted {WANTED_RATIO} or more",
        f"{'processor time an answer, ms':34}{f['cpu_ms_per_answer']:>10.2f}{f['bare_cpu_ms_per_answer']:>10.2f}"
        f"   ratio {f['cpu_ratio_to_bare']:.2f}",
        f"{'added to a token, p50, ms':34}{f['added_p50_ms']:>10.2f}{f['bare_added_p50_ms']:>10.2f}",
        f"{'added to a token, p99, ms':34}{f['added_p99_ms']:>10.2f}{f['bare_added_p99_ms']:>10.2f}"
        f"   wanted below {WANTED_P99_MS:.0f}",
        f"{'the same for a streamed token, us':34}{f['cpu_us_per_streamed_token']:>10.0f}"
        f"{f['bare_cpu_us_per_streamed_token']:>10.0f}",
        f"{'worst lag of the loop, ms':34}{f['max_loop_lag_ms']:>10.2f}"
        f"   wanted {WANTED_LAG_MS:.0f} or less; {f['num_loop_stalls']} stalls, idle {f['idle_loop_lag_ms']:.2f},"
        f" processor time in the worst {f['loop_cpu_ms_of_max']:.2f}, in any {f['max_loop_cpu_ms']:.2f}",
        f"client {f['client_cpu_share']:.0%}, workers {f['workers_cpu_share']:.0%} of a core; loop: {f['router_loop']}",
    ]
    if outcome.client_core_share > BUSY_SHARE:
        lines.append("warning: the client's core was busy, so that the rates may be its own and not the servers'")
    seen = sorted(outcome.lag.places.items(), key=lambda item: -item[1])
    lines += [f"  in a stall {num} times: {place}" for place, num in seen[:12]]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
