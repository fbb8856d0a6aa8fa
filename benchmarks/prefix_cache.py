"""How much of the prompts the prefix cache finds under each rule of eviction.

    python -m benchmarks.prefix_cache --trace mooncake_conversation.jsonl --sizes 1000 10000 50000
    python -m benchmarks.prefix_cache

The first replays the block ids of a Mooncake trace, the second a mix of questions about documents, conversations and prompts
that come once (`benchmarks.load.prefix_mix`). No model runs: prompts go one after another through the server's own block pool
and prefix cache, a block being 512 tokens. `unbounded` is what a cache without limit would find. The last line of standard
output is the result; rates are blocks found over blocks asked for.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.prefix_mix import PrefixMix, mixed_prompts
from benchmarks.load.traces import MOONCAKE_BLOCK_TOKENS, read_trace
from benchmarks.machine import machine_facts
from engine.block_pool import BlockPool, BlockTable
from engine.prefix_cache.cache import PrefixCache
from engine.prefix_cache.policy import PrefixCachePolicy
from protocol.prefix import HASH_BYTES

DEFAULT_SIZES = (1_000, 10_000, 50_000)
"""Blocks: what one accelerator holds beside a model of 8B, ten times that in its host's memory, and half of all there is."""
MIX_SIZES = (1_000, 4_000, 10_000)


@dataclass(frozen=True, slots=True)
class Prompt:
    """The names of its full blocks, and its length."""

    hashes: list[bytes]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class Replay:
    """What one rule found in a cache of one size."""

    num_blocks: int
    policy: str
    hit_rate: float
    num_evicted_blocks: int
    num_too_long: int
    seconds: float


def parse_arguments(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Hit rates of the prefix cache's rules of eviction.")
    parser.add_argument("--trace", type=Path, help="a Mooncake trace (JSONL); without it the made-up mix")
    parser.add_argument("--sizes", type=_count, nargs="+", help="blocks in the pool")
    parser.add_argument("--max-requests", type=_count, help="the first of a trace, or as many as the mix has")
    parser.add_argument("--seed", type=int, default=0, help="of the mix")
    return parser.parse_args(argv)


def trace_prompts(path: Path, max_requests: int | None) -> list[Prompt]:
    """The prompts of a Mooncake trace. A block that is not full has an id too, and is left out."""
    rows = read_trace(path, max_requests)
    return [_prompt(row.block_ids[: row.prompt_tokens // MOONCAKE_BLOCK_TOKENS], row.prompt_tokens) for row in rows]


def mix_prompts(max_requests: int | None, seed: int) -> list[Prompt]:
    """The prompts of the mix, each with half a block at its end that is not full."""
    mix = PrefixMix() if max_requests is None else PrefixMix(num_requests=max_requests)
    return [
        _prompt(block_ids, len(block_ids) * MOONCAKE_BLOCK_TOKENS + MOONCAKE_BLOCK_TOKENS // 2)
        for block_ids in mixed_prompts(mix, seed)
    ]


def replay(prompts: Iterable[Prompt], num_blocks: int, policy: PrefixCachePolicy) -> Replay:
    """Runs the prompts one after another through a pool of `num_blocks`. One that is longer than the pool is left out."""
    pool = BlockPool(num_blocks)
    cache = PrefixCache(pool, MOONCAKE_BLOCK_TOKENS, policy)
    num_too_long = 0
    start_s = time.perf_counter()
    for prompt in prompts:
        if prompt.num_tokens > num_blocks * MOONCAKE_BLOCK_TOKENS:
            num_too_long += 1
            continue
        found = cache.match(prompt.hashes, prompt.num_tokens)
        table = BlockTable(pool, MOONCAKE_BLOCK_TOKENS, found)
        table.ensure(prompt.num_tokens)
        cache.insert(prompt.hashes, table.block_ids, len(found), len(prompt.hashes))
        table.release()
    seconds = time.perf_counter() - start_s
    cache.check_integrity()
    counted = cache.counters
    rate = counted.num_hit_blocks / max(1, counted.num_hit_blocks + counted.num_missed_blocks)
    return Replay(num_blocks, policy.value, rate, counted.num_evicted_blocks, num_too_long, seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Replays and prints."""
    arguments = parse_arguments(argv)
    if arguments.trace is None:
        workload, prompts = "mix", mix_prompts(arguments.max_requests, arguments.seed)
    else:
        workload, prompts = arguments.trace.stem, trace_prompts(arguments.trace, arguments.max_requests)
    sizes = arguments.sizes or (MIX_SIZES if arguments.trace is None else DEFAULT_SIZES)
    num_different = len({name for prompt in prompts for name in prompt.hashes})
    unbounded = replay(
        prompts, num_different + max(len(prompt.hashes) for prompt in prompts) + 1, PrefixCachePolicy.LRU
    )
    replays = [replay(prompts, size, policy) for size in sizes for policy in PrefixCachePolicy]
    print(f"{workload}: {len(prompts)} prompts, {num_different} different blocks, unbounded {unbounded.hit_rate:.2%}")
    print(f"{'blocks':>8} {'rule':>5} {'found':>8} {'evicted':>9} {'too long':>9} {'us/block':>9}")
    num_asked = sum(len(prompt.hashes) for prompt in prompts)
    for one in replays:
        print(
            f"{one.num_blocks:>8} {one.policy:>5} {one.hit_rate:>8.2%} {one.num_evicted_blocks:>9} "
            f"{one.num_too_long:>9} {1e6 * one.seconds / num_asked:>9.2f}"
        )
    result = {
        "workload": workload,
        "num_prompts": len(prompts),
        "num_different_blocks": num_different,
        "unbounded_hit_rate": round(unbounded.hit_rate, 4),
        "hit_rates": {f"{one.policy}_{one.num_blocks}": round(one.hit_rate, 4) for one in replays},
        "machine": machine_facts(),
    }
    print(json.dumps(result))
    return 0


def _prompt(block_ids: Iterable[int], num_tokens: int) -> Prompt:
    return Prompt([block_id.to_bytes(HASH_BYTES, "little") for block_id in block_ids], num_tokens)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {number}")
    return number


if __name__ == "__main__":
    sys.exit(main())
