"""Scheduling policies against each other: the real scheduler code on a virtual clock, over request traces, at several loads.

    python -m benchmarks.policies --traces DIRECTORY

For each trace: a seeded sample of its requests, lengths scaled to the context, at shares of the rate that `fcfs` just keeps up
with, which is found by bisection. A step takes what `--cost` says, by default the demo model's on one core as measured by
`benchmarks.step_cost`. Same arguments, same figures, on any machine. Markdown tables go to standard error, the result to the
last line of standard output as JSON. `benchmarks/policy/server.py` says what the virtual server leaves out.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.load.traces import read_trace
from benchmarks.policy.figures import expectations, figures
from benchmarks.policy.server import Server, ServerSettings
from benchmarks.policy.step_cost import DEMO_MODEL_COST, StepCost
from benchmarks.policy.tables import expectation_table, policy_table
from benchmarks.policy.workload import Workload, sample
from protocol.errors import KvferryError
from protocol.layout import DEFAULT_BLOCK_SIZE
from scheduling.policies.choose import BENCHMARK_POLICIES, PolicySettings, make_benchmark_policy

TRACES = ("azure_code_2023.csv", "azure_conv_2023.csv", "mooncake_conversation.jsonl")
SATURATED_STRETCH = 1.05
"""A server keeps up when the last request ends within so many times the time in which all came."""
NUM_BISECTIONS = 7


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.policies",
        description="scheduling policies on a virtual clock over request traces",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--traces", type=Path, required=True, help="folder of the trace files")
    parser.add_argument("--files", nargs="+", default=list(TRACES), help="traces in it")
    parser.add_argument("--policies", nargs="+", choices=BENCHMARK_POLICIES, default=list(BENCHMARK_POLICIES))
    parser.add_argument(
        "--loads", type=float, nargs="+", default=[0.5, 0.8, 0.95], help="shares of the saturation rate"
    )
    parser.add_argument("--requests", type=int, default=1500, help="drawn from each trace")
    parser.add_argument("--poisson", action="store_true", help="a steady load instead of the trace's own times")
    parser.add_argument("--prompts-only", action="store_true", help="answers of one token, as on a prefill worker")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--context", type=int, default=8192, help="tokens that the model holds, to scale lengths to")
    parser.add_argument("--kv-tokens", type=int, default=32768, help="tokens that the cache holds")
    parser.add_argument("--kv-reserve", type=float, default=0.5, help="share of predicted output that is kept free")
    parser.add_argument("--max-step-tokens", type=int, default=256)
    parser.add_argument("--max-sequences", type=int, default=64)
    parser.add_argument("--itl-target-ms", type=float, help="bound the chunks beside decodes by time")
    parser.add_argument("--ttft-target-s", type=float, default=10.0, help="a request is aged after twice as long")
    parser.add_argument("--aging-share", type=float, default=PolicySettings().aging_share, help="of a second's reading")
    parser.add_argument("--quota", type=float, default=PolicySettings().quota, help="share of a step that the aged own")
    parser.add_argument("--max-debt-steps", type=float, default=PolicySettings().max_debt_steps)
    parser.add_argument(
        "--cost",
        type=float,
        nargs=3,
        metavar=("FIXED_S", "TOKEN_S", "PAIR_S"),
        default=[DEMO_MODEL_COST.fixed_s, DEMO_MODEL_COST.token_s, DEMO_MODEL_COST.pair_s],
        help="seconds of a step, of a token, of an attended pair",
    )
    return parser.parse_args(argv)


@dataclass(frozen=True, slots=True)
class Cell:
    """One run: a policy over a workload at a rate."""

    workload: Workload
    requests_per_s: float
    policy: str
    policy_settings: PolicySettings
    server: ServerSettings

    def run(self) -> dict[str, Any]:
        """Its figures."""
        policy = make_benchmark_policy(self.policy, self.policy_settings)
        server = replace(self.server, knows_output=self.policy == "oracle")
        return figures(Server(policy, server).run(self.workload.at_rate(self.requests_per_s)))


def saturation_rate(cell: Cell) -> float:
    """Requests a second that the cell's policy just keeps up with, by bisection below the rate of a backlog."""
    num_jobs = len(cell.workload.jobs)
    span_s = cell.workload.jobs[-1].arrival_s
    low, high = 0.0, 1.5 * replace(cell, requests_per_s=1e9).run()["requests_per_s"]
    for _ in range(NUM_BISECTIONS):
        rate = (low + high) / 2
        took_s = num_jobs / replace(cell, requests_per_s=rate).run()["requests_per_s"]
        low, high = (rate, high) if took_s <= SATURATED_STRETCH * span_s / rate else (low, rate)
    return low


def _cells(arguments: argparse.Namespace) -> list[Cell]:
    """One for each trace, `fcfs` without a rate."""
    policy_settings = PolicySettings(
        prefill_tokens_per_s=1.0 / StepCost(*arguments.cost).token_s,
        ttft_target_s=arguments.ttft_target_s,
        aging_share=arguments.aging_share,
        quota=arguments.quota,
        max_debt_steps=arguments.max_debt_steps,
    )
    server = ServerSettings(
        cost=StepCost(*arguments.cost),
        num_blocks=arguments.kv_tokens // DEFAULT_BLOCK_SIZE,
        max_step_tokens=arguments.max_step_tokens,
        max_sequences=arguments.max_sequences,
        max_output=arguments.context,
        kv_reserve=arguments.kv_reserve,
        itl_target_s=None if arguments.itl_target_ms is None else arguments.itl_target_ms / 1e3,
    )
    make = partial(Cell, requests_per_s=0.0, policy="fcfs", policy_settings=policy_settings, server=server)
    workloads = [
        sample(name, read_trace(arguments.traces / name), arguments.requests, arguments.context, arguments.seed)
        for name in arguments.files
    ]
    if arguments.poisson:
        workloads = [one.at_random(arguments.seed) for one in workloads]
    return [make(one.prompts_only() if arguments.prompts_only else one) for one in workloads]


def measure(arguments: argparse.Namespace, pool: ProcessPoolExecutor) -> list[dict[str, Any]]:
    """One entry for each trace and load, with the figures of each policy. Raises `ValueError` and `OSError`."""
    cells = _cells(arguments)
    rates = list(pool.map(saturation_rate, cells))
    wanted = [
        (load, rate, [replace(cell, requests_per_s=load * rate, policy=name) for name in arguments.policies])
        for cell, rate in zip(cells, rates, strict=True)
        for load in arguments.loads
    ]
    done = pool.map(Cell.run, [cell for _, _, each in wanted for cell in each])
    results = []
    for load, rate, each in wanted:
        by_policy = {cell.policy: next(done) for cell in each}
        workload = each[0].workload
        result: dict[str, Any] = {
            "trace": workload.name,
            "requests": len(workload.jobs),
            "rows": workload.num_rows,
            "scale": round(workload.scale, 4),
            "load": load,
            "saturation_per_s": round(rate, 4),
            "policies": by_policy,
            "expectations": expectations(by_policy),
        }
        print(policy_table(result), file=sys.stderr, flush=True)
        results.append(result)
    print(expectation_table(results), file=sys.stderr, flush=True)
    return results


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark. Exit code 2: a trace or a setting is wrong."""
    arguments = parse_arguments(argv)
    try:
        with ProcessPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            results = measure(arguments, pool)
    except (OSError, ValueError, KvferryError) as error:
        print(f"policies: {error}", file=sys.stderr)
        return 2
    settings = {name: value for name, value in vars(arguments).items() if name not in ("traces", "files", "cost")}
    print(json.dumps({"settings": settings | {"cost": asdict(StepCost(*arguments.cost))}, "results": results}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
