"""What a cluster does under five times the load that it can bear: whether it goes on answering as many, and refuses the rest
at once.

    python -m benchmarks.overload
    python -m benchmarks.overload --model smollm2-135m --vocab-size 32000 --prompt-tokens 64 --duration-s 120
    python -m benchmarks.overload --smoke

First the rate at which --lanes clients, each asking again when it was answered, get answers. Then open loads at shares of that
rate: the one with the best goodput is the load that can be borne. Goodput is answers a second that came whole, with the first
token within --ttft-limit-s. Then --factor times that load, for as long: goodput must be at least 0.9 of the best, whoever is
refused must be told 429 and when to try again, within a second, and the memory of no process may grow on.

The cluster is told --max-wait, --wait-share of the limit: who must be expected to wait longer for a first token is refused. All
prompts are different. Progress goes to standard error, the result to the last line of standard output, as JSON. Exit code
0: it held, 1: it did not, 2: no cluster, 130: interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from benchmarks.endurance.asking import QuickClient
from benchmarks.endurance.processes import RAY, Watch
from benchmarks.endurance.rest import come_to_rest
from benchmarks.endurance.session import TINY, Session, add_session_options, in_session
from benchmarks.endurance.stages import REFUSED, Stage, StageFigures, figures_of
from benchmarks.load.arrivals import poisson_arrivals
from benchmarks.load.client import LoadRequest
from benchmarks.load.on_cluster import run_benchmark, say
from benchmarks.load.prompts import random_prompt
from benchmarks.load.statistics import Limits, spread

SHARES = (0.8, 1.0, 1.2)
"""Of the rate that clients in lanes got."""
LEAST_GOODPUT = 0.9
MAX_REFUSAL_S = 1.0
REFUSED_PAUSE_S = 0.2
"""Before a client in a lane asks again."""
MAX_GROWTH_SHARE = 0.02
"""Of a process's memory, between the second and the last quarter of the overload."""
LOOK_EVERY_S = 0.5
TINY_POOL = "64MiB"
"""Of each worker: full of prefixes before the overload, so that what grows then is no cache that fills."""


@dataclass(frozen=True, slots=True)
class MemoryGrowth:
    """Median resident memory in the second and in the last quarter of a stage."""

    before_bytes: int
    after_bytes: int

    @property
    def share(self) -> float:
        """Growth, as a share of what was there before."""
        return self.after_bytes / self.before_bytes - 1.0


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.overload", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--prompt-tokens", type=int, default=1024, help="default %(default)s")
    add("--output-tokens", type=int, default=32, help="default %(default)s")
    add("--lanes", type=int, default=6, help="clients that find the rate (default %(default)s)")
    add("--duration-s", type=float, help="of each load; default 60, with --smoke 10")
    add("--ttft-limit-s", type=float, default=4.0, help="default %(default)s")
    add("--wait-share", type=float, default=0.6, help="--max-wait as a share of it; 0 sets none (default %(default)s)")
    add("--factor", type=float, default=5.0, help="overload (default %(default)s)")
    add("--smoke", action="store_true", help="short loads: says whether it runs, not how well")
    add_session_options(parser)
    arguments = parser.parse_args(argv)
    if arguments.duration_s is None:
        arguments.duration_s = 10.0 if arguments.smoke else 60.0
    for name in ("prompt_tokens", "output_tokens", "lanes", "duration_s", "ttft_limit_s", "factor", "timeout_s"):
        if getattr(arguments, name) <= 0:
            parser.error(f"--{name.replace('_', '-')} must be positive")
    return arguments


def serve_options(arguments: argparse.Namespace) -> list[str]:
    """What `kvferry serve` is told, besides what stands after `--`."""
    max_wait_s = arguments.wait_share * arguments.ttft_limit_s
    pool = ("--kv-cache-memory", TINY_POOL) if arguments.model == TINY else ()
    return ["--log-level", "warning", *pool, *(("--max-wait", f"{max_wait_s:g}") if max_wait_s else ())]


@dataclass(frozen=True, slots=True)
class Loads:
    """Makes and runs the loads of one run."""

    arguments: argparse.Namespace
    session: Session
    client: QuickClient

    async def rate_in_lanes(self) -> float:
        """Answers a second when each of the lanes asks again once it was answered, or refused. Raises `RuntimeError` for any
        other failure.
        """
        end = time.monotonic() + self.arguments.duration_s
        counts = await asyncio.gather(*(self._lane(number, end) for number in range(self.arguments.lanes)))
        return float(sum(counts) / self.arguments.duration_s)

    async def _lane(self, number: int, end: float) -> int:
        num_answered = 0
        while time.monotonic() < end:
            key = f"lane/{self.arguments.seed}/{number}/{num_answered}"
            shape = self.arguments.prompt_tokens, self.arguments.output_tokens
            error = await self.session.ask(key, *shape, time.monotonic())
            if error == REFUSED:
                await asyncio.sleep(REFUSED_PAUSE_S)
            elif error is not None:
                raise RuntimeError(f"a request ended with {error} though no more than {self.arguments.lanes} ran")
            else:
                num_answered += time.monotonic() < end
        return num_answered

    async def open_load(self, rate: float) -> StageFigures:
        """A load of `rate`, until all its answers are there."""
        arguments = self.arguments
        stage = Stage(rate, arguments.duration_s, settle_s=min(2 * arguments.ttft_limit_s, 0.4 * arguments.duration_s))
        requests = self._requests(rate)
        self.client.sent_late_s.clear()
        records = await self.client.open_loop(requests)
        found = figures_of(stage, requests, records, Limits(arguments.ttft_limit_s))
        say(
            f"{rate:.2f} requests/s: {found.good_per_s:.2f} good/s, {found.num_late} late, "
            f"{found.num_refused} of {found.num_requests} refused, first tokens {_p50(found.ttft_s)}, "
            f"refusals {_p50(found.refused_after_s)}, {found.errors or 'no errors'}"
        )
        await come_to_rest(self.session.client, arguments.timeout_s)
        return found

    def _requests(self, rate: float) -> list[LoadRequest]:
        arguments = self.arguments
        times = poisson_arrivals(rate, max(2, round(rate * arguments.duration_s)), arguments.seed)
        return [
            LoadRequest(
                due,
                random_prompt(
                    arguments.prompt_tokens, self.session.vocab_size, f"open/{arguments.seed}/{rate}/{number}"
                ),
                arguments.output_tokens,
            )
            for number, due in enumerate(times)
        ]


def _p50(spread_s: dict[str, float] | None) -> str:
    return "none" if spread_s is None else f"{spread_s['p50']:.3f} s, p99 {spread_s['p99']:.3f} s"


def growth_of(watch: Watch) -> dict[str, MemoryGrowth]:
    """Of each process. Raises `ValueError` for fewer than eight looks."""
    found = {}
    for name, rows in watch.readings.items():
        quarter = len(rows) // 4
        if quarter < 2:
            raise ValueError(f"{len(rows)} looks at memory are too few: raise --duration-s")
        before, after = rows[quarter : 2 * quarter], rows[-quarter:]
        found[name] = MemoryGrowth(
            *(sorted(one.resident_bytes for one in part)[len(part) // 2] for part in (before, after))
        )
    return found


def broken_bounds(best: StageFigures, overload: StageFigures, memory: dict[str, MemoryGrowth]) -> list[str]:
    """What did not hold, a sentence each."""
    found = []
    if overload.good_per_s < LEAST_GOODPUT * best.good_per_s:
        found.append(f"goodput fell from {best.good_per_s:.2f} to {overload.good_per_s:.2f} a second")
    if not overload.num_refused:
        found.append("nobody was refused: the load was no overload")
    elif overload.refused_after_s and overload.refused_after_s["p99"] > MAX_REFUSAL_S:
        found.append(f"refusals took {overload.refused_after_s['p99']:.2f} s at the 99th percentile")
    if overload.num_refused_without_retry_after:
        found.append(f"{overload.num_refused_without_retry_after} refusals did not say when to try again")
    if overload.errors:
        found.append(f"other errors than refusals: {overload.errors}")
    found += [
        f"{name} grew by {one.share:.1%}"
        for name, one in memory.items()
        if name != RAY and one.share > MAX_GROWTH_SHARE
    ]
    return found


@dataclass(slots=True)
class Found:
    """What a run has measured. `client_cores` and `sent_late_s` are this process's own, in the overload."""

    rate_in_lanes: float
    stages: list[StageFigures]
    overload: StageFigures
    watch: Watch
    client_cores: float
    sent_late_s: list[float] = field(default_factory=list)

    @property
    def best(self) -> StageFigures:
        """The load with the best goodput."""
        return _best(self.stages)


def _best(stages: Sequence[StageFigures]) -> StageFigures:
    return max(stages, key=lambda one: one.good_per_s)


async def run_loads(arguments: argparse.Namespace, session: Session) -> Found:
    """All loads, one after the other."""
    target = session.target
    client = QuickClient(str(target.client.base_url), target.model, arguments.timeout_s)
    loads = Loads(arguments, session, client)
    rate = await loads.rate_in_lanes()
    say(f"{arguments.lanes} clients got {rate:.2f} answers/s")
    stages = [await loads.open_load(share * rate) for share in SHARES]
    cpu_s, start = time.process_time(), time.monotonic()
    with session.watch.every(LOOK_EVERY_S, lambda: time.monotonic() - start):
        overload = await loads.open_load(arguments.factor * _best(stages).rate)
    client_cores = (time.process_time() - cpu_s) / (time.monotonic() - start)
    return Found(rate, stages, overload, session.watch, client_cores, client.sent_late_s)


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """The result's fields, and whether a bound was broken."""
    found = in_session(arguments, serve_options(arguments), partial(run_loads, arguments))
    best, overload = found.best, found.overload
    memory = growth_of(found.watch)
    broken = broken_bounds(best, overload, memory)
    for sentence in broken:
        say(f"overload: {sentence}")
    fields = {
        "answers_per_s_in_lanes": round(found.rate_in_lanes, 3),
        "stages": [one.figures() for one in found.stages],
        "overload": overload.figures(),
        "goodput_kept": round(overload.good_per_s / best.good_per_s, 4) if best.good_per_s else None,
        "memory": {name: {**asdict(one), "growth_share": round(one.share, 4)} for name, one in memory.items()},
        "client_cores_in_overload": round(found.client_cores, 3),
        "sent_late_s": spread(found.sent_late_s),
        "broken": broken,
    }
    return fields, bool(broken)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit code."""
    arguments = parse_arguments(argv)
    return run_benchmark("overload", arguments, partial(measure, arguments))


if __name__ == "__main__":
    sys.exit(main())
