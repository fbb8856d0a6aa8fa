"""How long the choice of a pair takes in the router: the question made of the fleet's books, and the pair with the least cost.

    python -m benchmarks.pair_cost --prefill 32 --decode 32

Loads, links and models are drawn from a seed; every second decode worker was never timed, as most are. Every round is another
prompt, and between two of them the books of one prefill worker, one decode worker and one link change, as a request changes
them. The same choice as plain loops is timed beside it, for comparison.

Before that the router looks up how much of the prompt each worker has cached, which takes as long as what is found is long: it
is told for prompts of which nothing is cached, and for those that begin with one of 16 system prompts of 2,000 tokens, which
half of the workers have. The result is on the last line of standard output, in
microseconds: medians, and what a tenth stays below, which is nearer to a quiet machine's.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar, cast

from benchmarks.machine import machine_facts
from protocol import kvferry_worker_pb2 as pb
from protocol.description import WorkerDescription
from protocol.ids import WorkerId, new_request_id
from protocol.layout import KvDtype, KvLayout
from protocol.prefix import HashChain, PrefixIdentity, reusable_names
from protocol.prefix_events import PrefixSnapshot
from protocol.request import GenerateRequest, StopRule
from protocol.wire import worker_id_to_wire
from router.fleet.clients import DecodeClient, PrefillClient
from router.fleet.member import Member
from router.fleet.prefix_index import PrefixIndex
from router.fleet.question import RoutingRules, question_of
from scheduling.few_pairs import plain_choice
from scheduling.pair_cost import least_cost
from scheduling.prefill_time import PrefillTimeModel, PromptWork

Answer = TypeVar("Answer")

LAYOUT = KvLayout("llama-3.1-8b", 32, 8, 128, KvDtype.BFLOAT16)
VOCAB_SIZE = 128_000
CAPACITY_TOKENS = 500_000
NUM_SYSTEM_PROMPTS, SYSTEM_PROMPT_TOKENS = 16, 2_000
NUM_WARM = 20
NUM_PLAIN = 20
"""Rounds of the plain loops, at most: they take long."""


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="How long the choice of a pair takes.")
    parser.add_argument("--prefill", type=_count, default=32, help="prefill workers")
    parser.add_argument("--decode", type=_count, default=32, help="decode workers")
    parser.add_argument("--rounds", type=_count, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


@dataclass(frozen=True, slots=True)
class Workers:
    """A fleet's members; nobody listens behind them."""

    prefills: list[Member[PrefillClient]]
    decodes: list[Member[DecodeClient]]


def make_workers(num_prefills: int, num_decodes: int, numbers: random.Random) -> Workers:
    """A busy fleet of workers, each with a speed of its own, all linked, and half of the links measured under load."""
    decodes = [_member("decode", n, numbers) for n in range(num_decodes)]
    prefills = [_member("prefill", n, numbers) for n in range(num_prefills)]
    for one in decodes[::2]:
        one.prefill_time = PrefillTimeModel.stated()
    for one in prefills:
        for other in decodes:
            one.links[other.name] = pb.ConnectReply(transport="tcp", bytes_per_second=numbers.uniform(1e8, 5e10))
            if numbers.random() < 0.5:
                one.backlog_bytes[other.name] = numbers.uniform(1e6, 1e8)
        for other in decodes[::2]:
            one.status.links.add(
                peer=worker_id_to_wire(other.description.worker), bytes_per_second=numbers.uniform(1e8, 5e10)
            )
    return Workers(prefills, decodes)


def change_books(workers: Workers, numbers: random.Random) -> None:
    """What happens between two requests: one is read, one crosses, one is decoded."""
    prefill, decode = numbers.choice(workers.prefills), numbers.choice(workers.decodes)
    prefill.num_queued_tokens = numbers.randint(0, 20_000)
    num_tokens = numbers.randint(16, 32_000)
    prefill.prefill_time = prefill.prefill_time.learn(PromptWork(num_tokens), num_tokens / 10_000)
    prefill.backlog_bytes[decode.name] = numbers.uniform(1e6, 1e8)
    decode.num_active = numbers.randint(0, 64)
    decode.num_held_tokens = numbers.randint(0, 400_000)
    decode.time_stay(numbers.uniform(0.5, 10.0))


def measure(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Microseconds of each question, each choice and each plain choice, in ascending order, after some that do not count."""
    numbers = random.Random(arguments.seed)
    workers = make_workers(arguments.prefill, arguments.decode, numbers)
    rules = RoutingRules()
    times: dict[str, list[float]] = {"question": [], "choice": [], "plain": []}
    for number in range(-min(NUM_WARM, arguments.rounds), arguments.rounds):
        change_books(workers, numbers)
        ask = partial(question_of, make_request(numbers), workers.prefills, workers.decodes, rules, number)
        question, question_us = _timed_us(ask)
        _, choice_us = _timed_us(partial(least_cost, question))
        if number >= 0:
            times["question"].append(question_us)
            times["choice"].append(choice_us)
    for _ in range(min(NUM_PLAIN, arguments.rounds)):
        times["plain"].append(_timed_us(partial(plain_choice, question))[1])
    return {name: sorted(each) for name, each in times.items()}


def measure_cached(arguments: argparse.Namespace) -> dict[str, list[float]]:
    """Microseconds of looking up what is cached of a prompt, of which nothing is, or its beginning; in ascending order."""
    numbers = random.Random(arguments.seed)
    identity = PrefixIdentity(LAYOUT.model_fingerprint, LAYOUT.dtype, LAYOUT.block_size)
    system_prompts = [_tokens(numbers, SYSTEM_PROMPT_TOKENS) for _ in range(NUM_SYSTEM_PROMPTS)]
    names = [name for prompt in system_prompts for name in HashChain(identity, prompt).hashes]
    index = PrefixIndex(len(names))
    for number in range(0, arguments.prefill + arguments.decode, 2):
        index.replace(WorkerId(f"worker-{number}", "1"), PrefixSnapshot(0, tuple(names)))
    times: dict[str, list[float]] = {"cached_none": [], "cached_beginning": []}
    for number in range(-min(NUM_WARM, arguments.rounds), arguments.rounds):
        new = _tokens(numbers, SYSTEM_PROMPT_TOKENS)
        for name, prompt in (("cached_none", new), ("cached_beginning", numbers.choice(system_prompts) + new)):
            look_up = partial(_look_up, index, identity, prompt)
            _, took_us = _timed_us(look_up)
            if number >= 0:
                times[name].append(took_us)
    return {name: sorted(each) for name, each in times.items()}


def _look_up(index: PrefixIndex, identity: PrefixIdentity, prompt: Sequence[int]) -> dict[WorkerId, int]:
    return index.num_cached_by_worker(reusable_names(identity, prompt))


def _tokens(numbers: random.Random, num_tokens: int) -> tuple[int, ...]:
    return tuple(numbers.choices(range(VOCAB_SIZE), k=num_tokens))


def make_request(numbers: random.Random) -> GenerateRequest:
    """A prompt of any length, and an answer of up to 2,000 tokens."""
    prompt = (0,) * numbers.randint(16, 32_000)
    return GenerateRequest(new_request_id(), prompt, StopRule(max_tokens=2000))


def main(argv: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    arguments = parse_arguments(argv)
    result: dict[str, Any] = {
        "num_prefill": arguments.prefill,
        "num_decode": arguments.decode,
        "rounds": arguments.rounds,
    }
    for name, microseconds in (measure(arguments) | measure_cached(arguments)).items():
        result[f"{name}_median_us"] = round(statistics.median(microseconds), 1)
        result[f"{name}_tenth_us"] = round(microseconds[len(microseconds) // 10], 1)
    sys.stdout.write(json.dumps(result | {"machine": machine_facts()}) + "\n")
    return 0


def _member(role: str, number: int, numbers: random.Random) -> Member[Any]:
    description = WorkerDescription(
        worker=WorkerId(f"{role}-{number}", "1"),
        role=role,
        layout=LAYOUT,
        num_blocks=CAPACITY_TOKENS // LAYOUT.block_size,
        max_context_tokens=128_000,
        device="cuda",
        num_threads=1,
        cores=(),
        process_id=1,
        host="localhost",
        target="localhost:1",
        transport="ucx",
    )
    rate = numbers.uniform(2_000, 20_000)
    return Member(
        cast(Any, None),
        description,
        num_active=numbers.randint(0, 64),
        num_queued_tokens=numbers.randint(0, 20_000) if role == "prefill" else 0,
        num_held_tokens=numbers.randint(0, 400_000) if role == "decode" else 0,
        prefill_time=PrefillTimeModel.stated().learn(PromptWork(1000), 1000 / rate),
    )


def _timed_us(call: Callable[[], Answer]) -> tuple[Answer, float]:
    start = time.perf_counter()
    answer = call()
    return answer, (time.perf_counter() - start) * 1e6


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
