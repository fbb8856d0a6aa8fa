"""The cost of an engine step, measured and fitted: seconds = a + b * new tokens + c * attended pairs.

    python -m benchmarks.step_cost --model smollm2-135m --threads 1 --pin 0

Times steps of decodes at several batch sizes and contexts, of prompt chunks at several depths, and of both together. What is
in the cache does not matter for the time and is not computed. Each step counts with its shortest time: what other
processes take away is not its cost. Progress goes to standard
error, the result to the last line of standard output as JSON; `benchmarks.policies` takes the three numbers.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.engine_options import add_engine_options, positive
from benchmarks.engine_step import GREEDY_DRAW
from benchmarks.machine import machine_facts
from benchmarks.policy.step_cost import TimedStep, fit
from engine.batch import SequenceSlice, StepBatch
from engine.build import EngineConfig, build_engine
from engine.checkpoint.resolve import resolve_model
from engine.engine import Engine
from engine.open_model import open_model
from protocol.errors import KvferryError
from protocol.layout import DEFAULT_BLOCK_SIZE
from scheduling.chunk_size import StepWork, attended

FIRST_TOKEN_ID = 256
NUM_WARM = 1


@dataclass(frozen=True, slots=True)
class StepShape:
    """`num_decodes` sequences after `decode_context` tokens each, and a chunk of `chunk_tokens` after `chunk_context`."""

    num_decodes: int
    decode_context: int
    chunk_tokens: int
    chunk_context: int

    @property
    def work(self) -> StepWork:
        """What the cost is a function of."""
        num_pairs = self.num_decodes * attended(self.decode_context, 1) + attended(
            self.chunk_context, self.chunk_tokens
        )
        return StepWork(self.num_decodes + self.chunk_tokens, num_pairs)


def shapes(max_context: int) -> list[StepShape]:
    """Decodes alone, chunks alone, both together, up to `max_context` tokens a sequence."""
    contexts = [context for context in (32, 512, 1536) if context + 256 <= max_context]
    found = [StepShape(size, context, 0, 0) for size in (1, 4, 16, 48) for context in contexts]
    found += [StepShape(0, 0, size, context) for size in (16, 64, 256) for context in (0, *contexts[1:])]
    return found + [StepShape(size, 512, chunk, 512) for size in (4, 32) for chunk in (32, 128) if 512 in contexts]


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.step_cost",
        description="seconds of an engine step as a + b * tokens + c * attended pairs",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_engine_options(parser)
    parser.add_argument("--repeats", type=positive, default=5, help="runs of each step, of which the shortest counts")
    parser.add_argument("--max-context", type=int, default=2048, help="tokens of the longest sequence")
    return parser.parse_args(argv)


def timed(engine: Engine, wanted: Sequence[StepShape], num_rounds: int) -> list[TimedStep]:
    """The shortest time of each step. All are run in turn, so that a busy spell of the machine spoils a round and no shape."""
    batches = [_batch_of(engine, shape) for shape in wanted]
    shortest = [math.inf] * len(wanted)
    for number in range(NUM_WARM + num_rounds):
        for index, batch in enumerate(batches):
            start = time.perf_counter()
            engine.step(batch)
            if number >= NUM_WARM:
                shortest[index] = min(shortest[index], time.perf_counter() - start)
    for shape, seconds in zip(wanted, shortest, strict=True):
        print(f"{shape}: {seconds * 1e3:.1f} ms", file=sys.stderr, flush=True)
    return [TimedStep(shape.work, seconds) for shape, seconds in zip(wanted, shortest, strict=True)]


def _batch_of(engine: Engine, shape: StepShape) -> StepBatch:
    parts, first_block = [], 0
    sizes = [(1, shape.decode_context)] * shape.num_decodes + [(shape.chunk_tokens, shape.chunk_context)]
    for number, (num_tokens, context) in enumerate(sizes):
        if num_tokens:
            num_blocks = engine.layout.num_blocks_for(context + num_tokens)
            block_ids = range(first_block, first_block + num_blocks)
            tokens = [FIRST_TOKEN_ID + index for index in range(num_tokens)]
            parts.append(SequenceSlice(str(number), tokens, context, block_ids, (GREEDY_DRAW,)))
            first_block += num_blocks
    return StepBatch(tuple(parts))


def _open_engine(arguments: argparse.Namespace, wanted: Sequence[StepShape]) -> Engine:
    config, source = open_model(resolve_model(arguments.model, lambda said: print(said, file=sys.stderr)).path)
    num_tokens = max(
        one.num_decodes * (one.decode_context + DEFAULT_BLOCK_SIZE + 1) + one.chunk_context + one.chunk_tokens
        for one in wanted
    )
    settings = EngineConfig(
        device=arguments.device,
        num_threads=arguments.threads,
        compute_dtype=arguments.dtype,
        num_blocks=num_tokens // DEFAULT_BLOCK_SIZE + 64,
    )
    return build_engine(settings, config, source)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the benchmark. Exit code 2: the model or a setting is wrong, or the steps cannot be fitted."""
    arguments = parse_arguments(argv)
    wanted = shapes(arguments.max_context)
    try:
        if arguments.pin is not None:
            os.sched_setaffinity(0, {arguments.pin})
        engine = _open_engine(arguments, wanted)
        cost, error = fit(timed(engine, wanted, arguments.repeats))
    except (OSError, ValueError, KvferryError) as failure:
        print(f"step_cost: {failure}", file=sys.stderr)
        return 2
    facts = {"model": arguments.model, "threads": arguments.threads, "steps": len(wanted), "machine": machine_facts()}
    print(json.dumps(asdict(cost) | {"mean_relative_error": round(error, 4)} | facts))
    return 0


if __name__ == "__main__":
    sys.exit(main())
