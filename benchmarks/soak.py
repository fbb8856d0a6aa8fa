"""Whether a cluster leaks: thousands of requests one after the other, two at a time, and everything counted back to zero after
each pair.

    python -m benchmarks.soak
    python -m benchmarks.soak --requests 500
    python -m benchmarks.soak -- --prefill 2 --prefix-cache-policy lru

Every second pair asks prompts that were asked before, whose texts must be the same again; the others are new. After each pair
all blocks, slots and leases must be free within --settle-s, and nothing may run or wait. Memory, file descriptors and threads
of each process are read all along; a straight line through the memory, without the warm-up, is the bytes that a request leaves
behind. The warm-up is long because caches, indexes and the allocator's pools have to be full first: fewer than 8,000 requests
are over before they are, and are told that memory grew; all else that a short run says holds.

Progress goes to standard error, the result to the last line of standard output, as JSON. 10,000 requests take about ten minutes
on two idle cores. Exit code 0: nothing failed, grew or was left, 1: something was, 2: no cluster, 130: interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from benchmarks.endurance.processes import RAY, Reading, Watch
from benchmarks.endurance.rest import NotAtRest, come_to_rest
from benchmarks.endurance.session import Session, add_session_options, in_session
from benchmarks.endurance.trend import trend
from benchmarks.load.client import LoadRequest, send
from benchmarks.load.on_cluster import run_benchmark, say
from benchmarks.load.prompts import random_prompt
from benchmarks.load.statistics import spread

PAIR = 2
LENGTHS = (1, 15, 16, 17, 40, 63, 64, 65, 120, 255, 256, 257, 400)
"""Of prompts, in tokens: around the ends of blocks and chunks, and between."""
NUM_REPEATED = 26
OUTPUT_TOKENS = 8
WARM_UP_SHARE = 0.5
"""Workers remember the names of the last 65,536 blocks and the last 4,096 tickets: some 4,500 requests fill both."""
SERVE = ("--kv-cache-memory", "2MiB", "--routing-policy", "least_loaded", "--log-level", "warning")
"""A pool that is full of prefixes after some dozens of requests, and all KV is ferried."""
TELL_EVERY = 500


@dataclass(slots=True)
class Course:
    """What has happened so far."""

    num_asked: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    texts: dict[str, str] = field(default_factory=dict)
    num_compared: int = 0
    different: list[str] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)
    rest_s: list[float] = field(default_factory=list)
    not_at_rest: str = ""

    def compare(self, key: str, text: str) -> None:
        """A prompt's text must be what it was the first time."""
        known = self.texts.setdefault(key, text)
        self.num_compared += 1
        if known != text:
            self.different.append(key)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--requests", type=int, default=10_000, help="default %(default)s, rounded up to pairs")
    add("--settle-s", type=float, default=2.0, help="until all must be free after a pair (default %(default)s)")
    add("--watch-every", type=int, default=10, metavar="PAIRS", help="memory is read, default %(default)s")
    add(
        "--allowed-bytes",
        type=float,
        default=128.0,
        help="growth of a process a request that passes for noise (default %(default)s: 1.2 MiB over 10,000 requests)",
    )
    add_session_options(parser)
    arguments = parser.parse_args(argv)
    if arguments.requests < 20 * PAIR or arguments.watch_every < 1 or arguments.settle_s <= 0:
        parser.error(f"needs at least {20 * PAIR} requests, a look every pair or more, and some time to settle")
    arguments.watch_every = min(arguments.watch_every, arguments.requests // (20 * PAIR))
    return arguments


def prompt_key(number: int, seed: int) -> tuple[str, int, bool]:
    """The `number`-th prompt: its key, its length in tokens and whether it was asked before, or will be."""
    is_repeated = (number // PAIR) % 2 == 0
    which = (number // PAIR // 2 * PAIR + number % PAIR) % NUM_REPEATED if is_repeated else number
    kind = "again" if is_repeated else "once"
    return f"{kind}/{seed}/{which}", LENGTHS[which % len(LENGTHS)], is_repeated


async def soak(arguments: argparse.Namespace, session: Session) -> Course:
    """Asks all pairs. Ends early when the cluster does not come to rest, which the course then says."""
    course = Course()
    await come_to_rest(session.client, arguments.settle_s + arguments.timeout_s)
    for first in range(0, arguments.requests, PAIR):
        await asyncio.gather(*(_ask(arguments.seed, session, course, first + place) for place in range(PAIR)))
        try:
            course.rest_s.append(await come_to_rest(session.client, arguments.settle_s))
        except NotAtRest as failure:
            course.not_at_rest = f"after {course.num_asked} requests, {failure}"
            break
        if first // PAIR % arguments.watch_every == 0:
            session.watch.look(course.num_asked)
        if course.num_asked % TELL_EVERY == 0:
            say(
                f"{course.num_asked} of {arguments.requests}: {_told(session.watch)}; {sum(course.errors.values())} failed"
            )
    return course


async def _ask(seed: int, session: Session, course: Course, number: int) -> None:
    key, num_tokens, is_repeated = prompt_key(number, seed)
    prompt = random_prompt(num_tokens, session.vocab_size, key)
    record = await send(session.target, LoadRequest(0.0, prompt, OUTPUT_TOKENS), time.monotonic())
    course.num_asked += 1
    course.latencies_s.append(record.end_s)
    if record.error is not None:
        course.errors[record.error] += 1
    elif is_repeated:
        course.compare(key, record.text)


def _told(watch: Watch) -> str:
    return ", ".join(f"{name} {rows[-1].resident_bytes / 1e6:.1f} MB" for name, rows in sorted(watch.readings.items()))


def growth(watch: Watch, num_asked: int, allowed_bytes: float) -> tuple[dict[str, Any], list[str]]:
    """Each process's figures after the warm-up, and who grows. Ray's own processes are told, not judged."""
    start = next((number for number, place in enumerate(watch.places) if place >= WARM_UP_SHARE * num_asked), 0)
    places = watch.places[start:]
    figures: dict[str, Any] = {}
    growing = []
    for name, rows in sorted(watch.readings.items()):
        line = trend(places, [one.resident_bytes for one in rows[start:]])
        half = len(rows[start:]) // 2
        descriptors = _most(rows[start : start + half]), _most(rows[start + half :])
        figures[name] = {
            "resident_bytes": line.figures("bytes_per_request"),
            "most_descriptors_and_threads": {"first_half": descriptors[0], "second_half": descriptors[1]},
        }
        if name == RAY:
            continue
        if line.grows_faster_than(allowed_bytes):
            growing.append(f"{name} grows by {line.slope:.0f} +- {line.half_width:.0f} bytes a request")
        if any(later > earlier for earlier, later in zip(*descriptors, strict=True)):
            growing.append(f"{name} holds more descriptors or threads than before: {descriptors}")
    return figures, growing


def _most(rows: Sequence[Reading]) -> tuple[int, int]:
    return max(one.num_descriptors for one in rows), max(one.num_threads for one in rows)


def measure(arguments: argparse.Namespace) -> tuple[dict[str, Any], bool]:
    """The result's fields, and whether something failed, grew or was left."""

    async def run(session: Session) -> tuple[Course, Watch, float]:
        start = time.monotonic()
        return await soak(arguments, session), session.watch, time.monotonic() - start

    course, watch, took_s = in_session(arguments, list(SERVE), run)
    processes, growing = growth(watch, course.num_asked, arguments.allowed_bytes)
    fields = {
        "requests": course.num_asked,
        "took_s": round(took_s, 1),
        "errors": dict(course.errors),
        "texts_compared": course.num_compared,
        "different_texts": course.different,
        "latency_s": spread(course.latencies_s),
        "rest_after_s": spread(course.rest_s),
        "not_at_rest": course.not_at_rest,
        "processes": processes,
        "growing": growing,
    }
    for sentence in [*growing, *filter(None, [course.not_at_rest])]:
        say(f"soak: {sentence}")
    return fields, bool(growing or course.errors or course.different or course.not_at_rest)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark; the exit code."""
    arguments = parse_arguments(argv)
    return run_benchmark("soak", arguments, partial(measure, arguments))


if __name__ == "__main__":
    sys.exit(main())
