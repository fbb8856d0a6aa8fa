"""What the scheduler itself costs a step: milliseconds of its parts, with many requests waiting and many running; and what it
costs to look a long prompt up in the prefix cache.

    python -m benchmarks.scheduler_cost --waiting 1000 --running 256

Every round is one step of a busy worker: what is reserved for those that run is summed, the policy's order is asked for, the
head is taken out and another request comes, a chunk size is asked for, and the step is planned. The works of those that wait
and run are at hand; what it takes to make those of the running again is told apart. Counted is the thread's processor time.

The look-up is what an admission does with a prompt of 32,768 tokens in blocks of 16, in a cache that holds many others: what
would be found, finding it, and giving it back; of prompts that are cached whole, by half, and not at all, another one each
time. Naming its blocks is told apart: that happens on the thread that submits.

The result is on the last line of standard output: for each part the median, and what a tenth of the rounds stay below, which
is nearer to a quiet machine's; and `bars`: whether the slowest median of a step, and of a look-up, is at most a millisecond.
Takes some 15 seconds. Exit code 0 whether they hold or not: a busy neighbour is no fault.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from benchmarks.machine import machine_facts
from benchmarks.policy.prefix_lookup import Lookup
from protocol.layout import DEFAULT_BLOCK_SIZE
from scheduling.admission import has_headroom, reserved_blocks
from scheduling.budget import StepLimits, plan_step
from scheduling.chunk_size import StepTimes, StepWork
from scheduling.policies.choose import SERVING_POLICIES, PolicySettings, make_policy
from scheduling.policies.policy import Policy, Queue
from scheduling.waiting_line import WaitingLine
from scheduling.work import Work

NUM_WARM = 20
NOW_S = 100.0
ITL_TARGET_S = 0.2
STEP_BAR_MS = 1.0
LOOK_UP_BAR_MS = 1.0


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.scheduler_cost", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--waiting", type=_count, default=1000, help="requests without blocks")
    parser.add_argument("--running", type=_count, default=256, help="sequences with blocks")
    parser.add_argument("--prefilling", type=_count, default=16, help="of them, prompts that are read")
    parser.add_argument("--rounds", type=_count, default=300)
    parser.add_argument("--policies", nargs="+", choices=SERVING_POLICIES, default=list(SERVING_POLICIES))
    parser.add_argument("--prompt-tokens", type=_count, default=32_768, help="of the prompt that is looked up")
    parser.add_argument("--cached-prompts", type=_count, default=64, help="as long, that the prefix cache holds")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


@dataclass(slots=True)
class Busy:
    """A worker's requests in the middle of its work."""

    policy: Policy
    line: WaitingLine
    decoding: list[Work]
    prefilling: list[Work]
    times: StepTimes
    numbers: random.Random
    num_arrived: int

    @classmethod
    def make(cls, name: str, arguments: argparse.Namespace) -> Busy:
        """Requests of all lengths and ages, drawn from the seed. The oldest are aged."""
        numbers, policy = random.Random(arguments.seed), make_policy(name, PolicySettings(ttft_target_s=20.0))
        num_prefilling = min(arguments.prefilling, arguments.running)
        num_decoding = arguments.running - num_prefilling
        decoding = [
            replace(_work(numbers, number), num_cached=size, num_known=size + 1, num_generated=1)
            for number in range(num_decoding)
            for size in [numbers.randrange(1, 4000)]
        ]
        busy = cls(policy, WaitingLine(policy.key), decoding, [], StepTimes(), numbers, num_decoding)
        busy.prefilling = [busy.arrive() for _ in range(num_prefilling)]
        for _ in range(arguments.waiting):
            busy.line.add(busy.arrive())
        return busy

    def arrive(self) -> Work:
        """One more request."""
        self.num_arrived += 1
        return _work(self.numbers, self.num_arrived)

    def queue(self) -> Queue:
        """As a worker hands it to its policy."""
        return Queue(self.line, self.prefilling, NOW_S)

    def admit(self) -> None:
        """Sums the reserve, asks for the order, exchanges the head for a new request."""
        reserved = reserved_blocks([*self.decoding, *self.prefilling], DEFAULT_BLOCK_SIZE, 0.5)
        head = next(self.policy.order(self.queue()))
        if has_headroom(head.num_known // DEFAULT_BLOCK_SIZE, 10**6, reserved):
            self.line.remove(head.request_id)
            self.line.add(self.arrive())

    def plan(self) -> None:
        """A step with a chunk that keeps a target, planned and learned."""
        decodes = StepWork.of((work, 1) for work in self.decoding)
        chunk = self.times.max_chunk_tokens(decodes, max(one.num_cached for one in self.prefilling), ITL_TARGET_S)
        num_running = len(self.decoding) + len(self.prefilling)
        limits = StepLimits(num_running + 256, num_running, chunk)
        plan_step([work.request_id for work in self.decoding], self.queue(), limits, self.policy)
        self.times.learn(decodes, ITL_TARGET_S / 2)

    def step(self) -> None:
        """All of it."""
        self.admit()
        self.plan()


def _work(numbers: random.Random, number: int) -> Work:
    return Work(
        request_id=f"request-{number}",
        num_known=numbers.randrange(1, 8000),
        num_cached=0,
        arrival=number,
        arrival_s=numbers.uniform(0.0, NOW_S),
        priority=numbers.randrange(-2, 3),
        num_predicted_output=numbers.randrange(1, 1000),
    )


def _make_again(works: Sequence[Work]) -> None:
    for one in works:
        Work(
            request_id=one.request_id,
            num_known=one.num_known,
            num_cached=one.num_cached,
            arrival=one.arrival,
            arrival_s=one.arrival_s,
            num_generated=one.num_generated,
            num_predicted_output=one.num_predicted_output,
        )


def milliseconds(run: Callable[[], object], num_rounds: int) -> dict[str, float]:
    """The median and the first decile of so many runs, of processor time, after some that do not count."""
    taken = []
    for number in range(NUM_WARM + num_rounds):
        start = time.thread_time()
        run()
        if number >= NUM_WARM:
            taken.append((time.thread_time() - start) * 1e3)
    taken.sort()
    return {"median_ms": round(statistics.median(taken), 4), "p10_ms": round(taken[len(taken) // 10], 4)}


def bar(limit_ms: float, measured: Iterable[dict[str, float]]) -> dict[str, Any]:
    """Whether all medians are within a limit."""
    slowest_ms = max(one["median_ms"] for one in measured)
    return {"limit_ms": limit_ms, "slowest_median_ms": slowest_ms, "holds": slowest_ms <= limit_ms}


def measure_policies(arguments: argparse.Namespace) -> dict[str, dict[str, dict[str, float]]]:
    """The parts of each policy's step."""
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name in arguments.policies:
        busy = Busy.make(name, arguments)
        parts = {"step": busy.step, "admit": busy.admit, "plan": busy.plan}
        results[name] = {part: milliseconds(run, arguments.rounds) for part, run in parts.items()}
        _tell(name, results[name])
    return results


def _tell(name: str, parts: dict[str, dict[str, float]]) -> None:
    told = ", ".join(f"{part} {one['median_ms']} ({one['p10_ms']})" for part, one in parts.items())
    print(f"{name}: median (first decile) ms: {told}", file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    arguments = parse_arguments(argv)
    policies = measure_policies(arguments)
    running = Busy.make("fcfs", arguments).decoding
    making = milliseconds(partial(_make_again, running), arguments.rounds)
    lookup = Lookup(arguments.cached_prompts, arguments.prompt_tokens, arguments.seed)
    prefix = lookup.measure(partial(milliseconds, num_rounds=arguments.rounds))
    _tell("prefix", {"hash at submit": prefix["hash_at_submit"], **prefix["look_up"]})
    bars = {
        "step": bar(STEP_BAR_MS, (parts["step"] for parts in policies.values())),
        "prefix_look_up": bar(LOOK_UP_BAR_MS, prefix["look_up"].values()),
    }
    for name, one in bars.items():
        holds = "holds" if one["holds"] else "does not hold"
        print(f"{name}: {one['slowest_median_ms']} of {one['limit_ms']} ms, {holds}", file=sys.stderr, flush=True)
    sizes = {"waiting": arguments.waiting, "running": arguments.running, "rounds": arguments.rounds}
    result = {"policies": policies, "making_works": making, "prefix": prefix, "bars": bars}
    print(json.dumps(result | sizes | {"machine": machine_facts()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
