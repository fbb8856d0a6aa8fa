"""Speed of the engine alone: decoded tokens a second by batch size, and prompt tokens a second.

    python -m benchmarks.engine_step --model smollm2-135m --threads 1 --pin 0

Greedy. Decode is timed by itself: the prompts are in the cache when the clock starts. Progress goes to standard error,
the result to the last line of standard output as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from benchmarks.engine_options import add_engine_options, positive
from benchmarks.machine import machine_facts
from engine.batch import Draw, SequenceSlice, StepBatch
from engine.build import EngineConfig, build_engine
from engine.checkpoint.resolve import resolve_model
from engine.engine import Engine
from engine.open_model import open_model
from protocol.errors import KvferryError
from protocol.layout import DEFAULT_BLOCK_SIZE
from protocol.request import SamplingParams

GREEDY_DRAW = Draw(SamplingParams(temperature=0.0), (), 0)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.engine_step",
        description="decoded tokens/s by batch size and prompt tokens/s of the engine, without any server around it",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add_engine_options(parser)
    parser.add_argument("--attention", default="auto", help="auto, fast, reference or cuda")
    parser.add_argument("--batches", type=positive, nargs="*", default=[1, 8, 16, 32], help="sizes of decode batches")
    parser.add_argument("--prompt-tokens", type=positive, default=16, help="prompt of a sequence that is decoded")
    parser.add_argument("--steps", type=positive, default=64, help="decode steps that are timed")
    parser.add_argument("--prefill-tokens", type=positive, default=1024, help="prompt that is read for its own sake")
    parser.add_argument("--chunk-tokens", type=positive, default=256, help="token budget of a prefill step")
    parser.add_argument("--repeats", type=positive, default=3, help="runs of each kind, of which the median counts")
    return parser.parse_args(argv)


@dataclass(slots=True)
class RunningSequence:
    """One sequence: the tokens that are not cached yet, where they begin, and the blocks that it may fill."""

    name: str
    waiting: list[int]
    block_ids: Sequence[int]
    start: int = 0

    def take(self, max_tokens: int) -> SequenceSlice:
        """The next slice. With the last token at hand it asks for one more."""
        taken, self.waiting = self.waiting[:max_tokens], self.waiting[max_tokens:]
        part = SequenceSlice(self.name, taken, self.start, self.block_ids, () if self.waiting else (GREEDY_DRAW,))
        self.start += len(taken)
        return part


def make_sequences(
    num_sequences: int, num_prompt_tokens: int, num_blocks_each: int, vocab_size: int, seed: int
) -> list[RunningSequence]:
    """Sequences with random prompts and blocks that are scattered, as they are in a server that has run for a while."""
    draw = random.Random(seed)
    blocks = draw.sample(range(num_sequences * num_blocks_each), k=num_sequences * num_blocks_each)
    return [
        RunningSequence(
            str(index),
            [draw.randrange(vocab_size) for _ in range(num_prompt_tokens)],
            blocks[index * num_blocks_each : (index + 1) * num_blocks_each],
        )
        for index in range(num_sequences)
    ]


def decode_tokens_per_s(engine: Engine, num_sequences: int, arguments: argparse.Namespace, seed: int) -> float:
    """Tokens a second over all sequences in `arguments.steps` steps of decode."""
    num_blocks = engine.layout.num_blocks_for(arguments.prompt_tokens + arguments.steps)
    sequences = make_sequences(num_sequences, arguments.prompt_tokens, num_blocks, engine.config.vocab_size, seed)
    _step(engine, sequences, arguments.prompt_tokens)
    num_steps: int = arguments.steps
    start = time.perf_counter()
    for _ in range(num_steps):
        _step(engine, sequences, 1)
    return num_sequences * num_steps / (time.perf_counter() - start)


def prefill_tokens_per_s(engine: Engine, arguments: argparse.Namespace, seed: int) -> float:
    """Prompt tokens a second, until the first token is drawn."""
    num_tokens: int = arguments.prefill_tokens
    num_blocks = engine.layout.num_blocks_for(num_tokens)
    sequences = make_sequences(1, num_tokens, num_blocks, engine.config.vocab_size, seed)
    start = time.perf_counter()
    for _ in range(0, num_tokens, arguments.chunk_tokens):
        _step(engine, sequences, arguments.chunk_tokens)
    return num_tokens / (time.perf_counter() - start)


def _step(engine: Engine, sequences: Sequence[RunningSequence], max_tokens: int) -> None:
    result = engine.step(StepBatch(tuple(each.take(max_tokens) for each in sequences)))
    for token in result.tokens:
        sequences[int(token.request_id)].waiting.append(token.token_id)


def open_engine(arguments: argparse.Namespace) -> Engine:
    """The engine, with a cache of the size that the benchmark needs. Raises `KvferryError`."""
    config, source = open_model(resolve_model(arguments.model, _tell).path)
    decode = max(arguments.batches, default=0) * -(-(arguments.prompt_tokens + arguments.steps) // DEFAULT_BLOCK_SIZE)
    settings = EngineConfig(
        device=arguments.device,
        num_threads=arguments.threads,
        compute_dtype=arguments.dtype,
        attention=arguments.attention,
        num_blocks=max(decode, -(-arguments.prefill_tokens // DEFAULT_BLOCK_SIZE)),
    )
    return build_engine(settings, config, source)


def measure(engine: Engine, arguments: argparse.Namespace) -> dict[str, float]:
    """The medians, by the keys of the result. The first run of each kind warms up and does not count."""
    kinds: dict[str, Callable[[int], float]] = {
        f"decode_tokens_per_s_batch_{size}": partial(decode_tokens_per_s, engine, size, arguments)
        for size in arguments.batches
    }
    kinds[f"prefill_tokens_per_s_{arguments.prefill_tokens}"] = partial(prefill_tokens_per_s, engine, arguments)
    medians = {}
    for name, run in kinds.items():
        runs = [run(seed) for seed in range(arguments.repeats + 1)][1:]
        medians[name] = round(statistics.median(runs), 2)
        _tell(f"{name}: {medians[name]} (median of {', '.join(f'{each:.2f}' for each in runs)})")
    return medians


def _tell(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Runs the benchmark. Exit code 2: the model or a setting is wrong."""
    arguments = parse_arguments(argv)
    try:
        if arguments.pin is not None:
            os.sched_setaffinity(0, {arguments.pin})
        result: dict[str, Any] = dict(measure(open_engine(arguments), arguments))
    except (OSError, KvferryError) as error:
        print(f"engine_step: {error}", file=sys.stderr)
        return 2
    settings = {name: getattr(arguments, name) for name in ("model", "device", "dtype", "attention", "chunk_tokens")}
    print(json.dumps(result | settings | {"threads": arguments.threads, "machine": machine_facts()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
