"""Records how long an engine takes to read prompts, as a prefill worker's router would see it: the series that the model of
prefill times is tested on, and anybody's own.

    python -m benchmarks.prefill_times --model smollm2-135m --threads 1 --pin 0 --prompts 200 --out times.csv

Prompts come in bursts of one to four, each a few steps after the one before, and share the step's token budget as in the
prefill worker; some have a prefix in the cache. Lengths are log-normal, as wide as the logs of public services show. A row
a prompt, in the order in which they ended: tokens that were computed, tokens in the cache, tokens of prompts ahead of it when
it came, some of them read already, as a router counts them, and seconds from then to the first token. The lines before, which
begin with `#`, say how the file was made.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shlex
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine_options import add_engine_options, positive
from benchmarks.engine_step import RunningSequence
from benchmarks.machine import machine_facts
from engine.batch import StepBatch
from engine.build import EngineConfig, build_engine
from engine.checkpoint.resolve import resolve_model
from engine.engine import Engine
from engine.open_model import open_model
from protocol.errors import KvferryError
from protocol.layout import DEFAULT_BLOCK_SIZE
from scheduling.budget import StepLimits, plan_step
from scheduling.policies.fcfs import Fcfs
from scheduling.policies.policy import Queue
from scheduling.prefill_time import PromptWork
from scheduling.waiting_line import WaitingLine
from scheduling.work import Work

FCFS = Fcfs()

COLUMNS = "num_computed_tokens,num_cached_tokens,num_queued_tokens,seconds"
LEAST_TOKENS = 16
LOG_DEVIATION = 1.0
CACHED_TOKENS = (0, 0, 0, 0, 256, 512, 1024)
MAX_BURST, MAX_STEPS_BETWEEN = 4, 8

Sample = tuple[PromptWork, float]
"""A prompt, and the seconds that it took."""


@dataclass(frozen=True, slots=True)
class Reading:
    """A prompt that came at `at` (seconds) and is being read."""

    work: PromptWork
    sequence: RunningSequence
    at: float

    @property
    def num_uncached(self) -> int:
        """Tokens that are still to be computed."""
        return len(self.sequence.waiting)


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.prefill_times",
        description="records how long the engine takes to read prompts, alone and behind others",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_engine_options(parser)
    parser.add_argument("--prompts", type=positive, default=200, help="how many to read")
    parser.add_argument("--median-tokens", type=positive, default=400, help="of the lengths of prompts")
    parser.add_argument("--most-tokens", type=positive, default=2048, help="that are computed of a prompt")
    parser.add_argument("--chunk-tokens", type=positive, default=256, help="token budget of a step")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    return parser.parse_args(argv)


class Recorder:
    """Reads bursts of prompts with an engine whose cache has room for `MAX_BURST` of the longest."""

    def __init__(self, engine: Engine, arguments: argparse.Namespace) -> None:
        self._engine = engine
        self._numbers = random.Random(arguments.seed)
        self._median_tokens: int = arguments.median_tokens
        self._most_tokens: int = arguments.most_tokens
        self._limits = StepLimits(arguments.chunk_tokens, MAX_BURST)

    def fill(self) -> None:
        """Puts something into the cache that can stand for the beginning of any prompt."""
        for number in range(MAX_BURST):
            sequence = RunningSequence(str(number), [0] * max(CACHED_TOKENS), self._blocks(number))
            reading = [Reading(PromptWork(max(CACHED_TOKENS)), sequence, 0.0)]
            while sequence.waiting:
                self._step(reading)

    def burst(self, num_prompts: int) -> Iterator[Sample]:
        """Each prompt comes some steps after the one before, or at once where nobody is left to be waited for."""
        reading: list[Reading] = []
        num_steps_left = 0
        num_come = 0
        while reading or num_come < num_prompts:
            if num_come < num_prompts and (num_steps_left < 1 or not reading):
                reading.append(self._come(num_come, reading))
                num_come += 1
                num_steps_left = self._numbers.randint(0, MAX_STEPS_BETWEEN)
                continue
            num_steps_left -= 1
            self._step(reading)
            now = time.perf_counter()
            yield from ((one.work, now - one.at) for one in reading if not one.num_uncached)
            reading = [one for one in reading if one.num_uncached]

    def _come(self, number: int, ahead: Sequence[Reading]) -> Reading:
        drawn = self._numbers.lognormvariate(math.log(self._median_tokens), LOG_DEVIATION)
        num_computed = min(self._most_tokens, max(LEAST_TOKENS, round(drawn)))
        num_cached = self._numbers.choice(CACHED_TOKENS)
        num_queued = sum(one.work.num_computed_tokens + one.work.num_cached_tokens for one in ahead)
        tokens = [self._numbers.randrange(self._engine.config.vocab_size) for _ in range(num_computed)]
        # The cached prefix is whatever those blocks hold from before: its values do not matter to the time.
        sequence = RunningSequence(str(number), tokens, self._blocks(number), num_cached)
        return Reading(PromptWork(num_computed, num_cached, num_queued), sequence, time.perf_counter())

    def _blocks(self, number: int) -> range:
        size = blocks_each(self._engine.layout.block_size, self._most_tokens)
        return range(number * size, (number + 1) * size)

    def _step(self, reading: Sequence[Reading]) -> None:
        sequences = {one.sequence.name: one.sequence for one in reading}
        waiting = [Work(name, one.start + len(one.waiting), one.start, int(name)) for name, one in sequences.items()]
        grants = plan_step([], Queue(WaitingLine(FCFS.key), waiting, 0.0), self._limits, FCFS)
        slices = tuple(sequences[grant.request_id].take(grant.num_tokens) for grant in grants)
        self._engine.step(StepBatch(slices))


def record(engine: Engine, arguments: argparse.Namespace) -> Iterator[Sample]:
    """`arguments.prompts` samples. A burst before them warms the engine up and does not count."""
    recorder = Recorder(engine, arguments)
    sizes = random.Random(arguments.seed)
    recorder.fill()
    list(recorder.burst(MAX_BURST))
    num_left: int = arguments.prompts
    while num_left:
        num_prompts = min(num_left, sizes.randint(1, MAX_BURST))
        yield from recorder.burst(num_prompts)
        num_left -= num_prompts


def blocks_each(block_size: int, most_tokens: int) -> int:
    """Blocks of the longest prompt with the longest prefix, and its first token."""
    return -(-(most_tokens + max(CACHED_TOKENS) + 1) // block_size)


def open_engine(arguments: argparse.Namespace) -> Engine:
    """The engine, with a cache for one burst. Raises `KvferryError`."""
    config, source = open_model(resolve_model(arguments.model, _tell).path)
    settings = EngineConfig(
        device=arguments.device,
        num_threads=arguments.threads,
        compute_dtype=arguments.dtype,
        num_blocks=MAX_BURST * blocks_each(DEFAULT_BLOCK_SIZE, arguments.most_tokens),
    )
    return build_engine(settings, config, source)


def header(command: Sequence[str]) -> str:
    """How a file was made, and the names of its columns."""
    made = f"# python -m benchmarks.prefill_times {shlex.join(command)}\n"
    return f"{made}# {json.dumps(machine_facts())}\n{COLUMNS}\n"


def row(sample: Sample) -> str:
    """One line of the file."""
    work, seconds = sample
    return f"{work.num_computed_tokens},{work.num_cached_tokens},{work.num_queued_tokens},{seconds:.5f}\n"


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Records. Exit code 2: the model, a setting or the file is wrong."""
    arguments = parse_arguments(argv)
    try:
        if arguments.pin is not None:
            os.sched_setaffinity(0, {arguments.pin})
        engine = open_engine(arguments)
        with arguments.out.open("w", encoding="utf-8", buffering=1) as file:
            file.write(header(sys.argv[1:] if argv is None else argv))
            for number, sample in enumerate(record(engine, arguments), start=1):
                file.write(row(sample))
                if number % 20 == 0:
                    _tell(f"{number} of {arguments.prompts} prompts")
    except (OSError, KvferryError) as error:
        print(f"prefill_times: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
