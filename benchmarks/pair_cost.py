"""How long the choice of a pair takes in the router: all costs of one prompt and the least of them.

    python -m benchmarks.pair_cost --prefill 32 --decode 32

Loads, links and models are drawn from a seed; every round asks about another prompt. The result is on the last line of
standard output, in microseconds: the median, and what a tenth of the choices stay below, which is nearer to a quiet machine's.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence

import numpy as np

from benchmarks.machine import machine_facts
from scheduling.pair_cost import DecodeLoad, LinkLoads, PairingQuestion, PrefillLoad, least_cost
from scheduling.prefill_time import PrefillTimeModel, PromptWork

KV_BYTES_PER_TOKEN = 128 * 1024
"""Llama 3.1 8B in 16 bits."""
NUM_WARM = 20


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="How long the choice of a pair takes.")
    parser.add_argument("--prefill", type=_count, default=32, help="prefill workers")
    parser.add_argument("--decode", type=_count, default=32, help="decode workers")
    parser.add_argument("--rounds", type=_count, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def make_question(num_prefills: int, num_decodes: int, numbers: random.Random) -> PairingQuestion:
    """A prompt for a busy fleet of workers that were all timed, each with a speed of its own and all linked."""
    shape = num_prefills, num_decodes
    rates = [numbers.uniform(1e8, 5e10) for _ in range(num_prefills * num_decodes)]
    backlogs = [numbers.choice((0.0, 1e6, 1e8)) for _ in range(num_prefills * num_decodes)]
    return PairingQuestion(
        num_prompt_tokens=numbers.randint(16, 32_000),
        num_held_tokens=40_000,
        prefills=[
            PrefillLoad(f"prefill-{n}", _timed(numbers), numbers.randint(0, 20_000), 0, KV_BYTES_PER_TOKEN)
            for n in range(num_prefills)
        ],
        decodes=[
            DecodeLoad(
                name=f"decode-{n}",
                model=_timed(numbers),
                num_active=numbers.randint(0, 64),
                num_held_tokens=numbers.randint(0, 400_000),
                capacity_tokens=500_000,
                kv_bytes_per_token=KV_BYTES_PER_TOKEN,
            )
            for n in range(num_decodes)
        ],
        links=LinkLoads(np.array(rates).reshape(shape), np.array(backlogs).reshape(shape)),
    )


def choice_us(questions: Sequence[PairingQuestion]) -> list[float]:
    """Microseconds of each choice, in ascending order, after some that do not count."""
    for question in questions[:NUM_WARM]:
        least_cost(question)
    microseconds = []
    for question in questions:
        start = time.perf_counter()
        least_cost(question)
        microseconds.append((time.perf_counter() - start) * 1e6)
    return sorted(microseconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    arguments = parse_arguments(argv)
    numbers = random.Random(arguments.seed)
    questions = [make_question(arguments.prefill, arguments.decode, numbers) for _ in range(arguments.rounds)]
    microseconds = choice_us(questions)
    result = {
        "num_prefill": arguments.prefill,
        "num_decode": arguments.decode,
        "rounds": arguments.rounds,
        "median_us": round(statistics.median(microseconds), 1),
        "tenth_us": round(microseconds[len(microseconds) // 10], 1),
        "machine": machine_facts(),
    }
    sys.stdout.write(json.dumps(result) + "\n")
    return 0


def _timed(numbers: random.Random) -> PrefillTimeModel:
    rate = numbers.uniform(2_000, 20_000)
    return PrefillTimeModel.stated().learn(PromptWork(1000), 1000 / rate)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
