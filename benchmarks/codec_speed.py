"""Speed of the wire codecs on one core: pack and unpack, digest included, beside a memory copy; and what that is of a prefill.

    python -m benchmarks.codec_speed --tokens 1024 --budgets 0.3 0.42 0.6
    KVFERRY_CODEC_KERNELS=torch python -m benchmarks.codec_speed --device cuda --dtype bfloat16

The second is what the Triton kernels, which code CUDA memory where nothing is said, are to be compared with.
Megabytes are of the KV in 16 bits, whatever the cache's dtype, so that codecs can be compared. Every time is the median
of several rounds that take turns, so that a busy machine slows all of them alike. Progress goes to standard error, the
result to the last line of standard output.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.machine import machine_facts
from protocol.errors import ConfigError
from protocol.ids import WorkerId
from protocol.layout import KvDtype, KvLayout
from protocol.ticket import Ticket
from protocol.wire_rule import Importance, WireCodec, WireRule
from transfer.arena import PAGE_BYTES, Arena
from transfer.codec.budget import sixteen_bit_bytes
from transfer.codec.chunk import chunk_bytes
from transfer.codec.operations import operations_for
from transfer.codec.pool_codec import PoolCodec
from transfer.codec.rows import TORCH_DTYPES

DEMO_PREFILL_TOKENS_PER_S = 215.0
"""The demo model on one core, as `benchmarks.engine_step` measured it."""
REQUEST_ID = "5" * 32
WORKER = WorkerId("bench", "0")


@dataclass(frozen=True, slots=True)
class Case:
    """One way to write KV."""

    name: str
    rule: WireRule


@dataclass(slots=True)
class Times:
    """Seconds of each round, and the bytes that crossed."""

    pack_s: list[float] = field(default_factory=list)
    unpack_s: list[float] = field(default_factory=list)
    num_bytes: int = 0


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Speed of the wire codecs on one core.")
    parser.add_argument("--tokens", type=_count, default=1024, help="tokens of the one chunk that is packed")
    parser.add_argument(
        "--budgets", type=float, nargs="+", default=[0.3, 0.36, 0.42, 0.6], help="for channel and spectrum"
    )
    parser.add_argument("--dtype", type=KvDtype, default=KvDtype.FLOAT32, choices=list(KvDtype), help="of both caches")
    parser.add_argument("--pool-mib", type=_count, default=512, help="memory of each of the two caches")
    parser.add_argument("--layers", type=_count, default=30)
    parser.add_argument("--kv-heads", type=_count, default=3)
    parser.add_argument("--head-dim", type=_count, default=64)
    parser.add_argument("--importance", type=Importance, default=Importance.POSITIONAL, choices=list(Importance))
    parser.add_argument("--prefill-tokens-per-s", type=float, default=DEMO_PREFILL_TOKENS_PER_S)
    parser.add_argument("--rounds", type=_count, default=5)
    parser.add_argument("--device", default="cpu", help="where both caches are: cpu or cuda")
    return parser.parse_args(argv)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not at least 1")
    return number


def cases(budgets: list[float], importance: Importance) -> list[Case]:
    """Every codec: those with a choice at each budget, the others once."""
    found = [Case("native", WireRule())]
    for codec in (WireCodec.CHANNEL, WireCodec.SPECTRUM):
        found += [Case(f"{codec}@{budget:g}", WireRule(codec, budget, importance)) for budget in budgets]
    fixed = (WireCodec.UNIFORM_INT8, WireCodec.UNIFORM_INT4, WireCodec.FP8)
    return found + [Case(codec.value, WireRule(codec, 1.0, importance)) for codec in fixed]


class Bench:
    """Two pools with scattered blocks and one slot between them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.num_tokens: int = arguments.tokens
        self.layout = KvLayout("codec-speed", arguments.layers, arguments.kv_heads, arguments.head_dim, arguments.dtype)
        needed = self.layout.num_blocks_for(self.num_tokens)
        # As large as in a server: what is slow in a large pool must show.
        block_bytes = self.layout.block_size * self.layout.elements_per_token * arguments.dtype.num_bytes
        num_blocks = max(needed, (arguments.pool_mib << 20) // block_bytes)
        shape = (arguments.layers, 2, num_blocks, self.layout.block_size, arguments.kv_heads, arguments.head_dim)
        generator = torch.Generator().manual_seed(0)
        pool = torch.randn(shape, generator=generator).to(TORCH_DTYPES[arguments.dtype]).to(arguments.device)
        self.block_ids = torch.randperm(num_blocks, generator=generator)[:needed].tolist()
        self._sender = PoolCodec(pool, self.layout)
        self._receiver = PoolCodec(torch.zeros_like(pool), self.layout)
        size = chunk_bytes(self.layout, arguments.dtype, self.num_tokens)
        self.slot = Arena(1, -(-size // PAGE_BYTES) * PAGE_BYTES).slot(0)
        self._is_on_cpu = pool.device.type == "cpu"
        self.operations = type(operations_for(pool.device).channel).__name__
        elements = sixteen_bit_bytes(self.layout, self.num_tokens) // 2
        self._from, self._to = torch.zeros(elements, dtype=torch.float16), torch.zeros(elements, dtype=torch.float16)

    def one_round(self, case: Case, times: Times) -> None:
        """Packs and unpacks once."""
        ticket = self._ticket(case.rule)
        start = time.perf_counter()
        times.num_bytes = self._sender.pack(ticket, 0, self.block_ids, self.slot)
        self._wait()
        packed = time.perf_counter()
        self._receiver.unpack(ticket, 0, self.block_ids, self.slot[: times.num_bytes])
        self._wait()
        times.pack_s.append(packed - start)
        times.unpack_s.append(time.perf_counter() - packed)

    def _wait(self) -> None:
        """Until the device has done what it was told."""
        if not self._is_on_cpu:
            torch.cuda.synchronize()

    def memcpy_s(self) -> float:
        """Seconds to copy the KV once in 16 bits, host to host."""
        return seconds_of(lambda: self._to.copy_(self._from))

    def _ticket(self, rule: WireRule) -> Ticket:
        return Ticket(
            request_id=REQUEST_ID,
            prefill_worker=WORKER,
            decode_worker=WORKER,
            generation=1,
            slots=(0,),
            slot_bytes=len(self.slot),
            first_token=0,
            num_tokens=self.num_tokens,
            chunk_tokens=self.num_tokens,
            dtype=self.layout.dtype,
            lease_s=1.0,
            rule=rule,
        )


def seconds_of(work: Callable[[], object]) -> float:
    """How long it takes, once."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    """Median of all rounds for every codec. A budget that a codec cannot reach is left out, and said."""
    bench = Bench(arguments)
    every: dict[str, tuple[Case, Times]] = {}
    for case in cases(arguments.budgets, arguments.importance):
        try:
            bench.one_round(case, Times())
        except ConfigError as error:
            print(f"{case.name}: {error}", file=sys.stderr)
            continue
        every[case.name] = (case, Times())
    copies_s = []
    for _ in range(arguments.rounds):
        copies_s.append(bench.memcpy_s())
        for case, times in every.values():
            bench.one_round(case, times)
    half_bytes = sixteen_bit_bytes(bench.layout, bench.num_tokens)
    prefill_s = bench.num_tokens / arguments.prefill_tokens_per_s
    return {
        "operations": bench.operations,
        "memcpy_mb_per_s": round(half_bytes / statistics.median(copies_s) / 1e6),
        "codecs": {name: _row(times, half_bytes, prefill_s) for name, (_, times) in every.items()},
    }


def _row(times: Times, half_bytes: int, prefill_s: float) -> dict[str, float]:
    pack_s, unpack_s = statistics.median(times.pack_s), statistics.median(times.unpack_s)
    return {
        "wire_ratio": round(times.num_bytes / half_bytes, 4),
        "pack_ms": round(pack_s * 1e3, 2),
        "unpack_ms": round(unpack_s * 1e3, 2),
        "pack_mb_per_s": round(half_bytes / pack_s / 1e6),
        "unpack_mb_per_s": round(half_bytes / unpack_s / 1e6),
        "pack_percent_of_prefill": round(100 * pack_s / prefill_s, 2),
        "unpack_percent_of_prefill": round(100 * unpack_s / prefill_s, 2),
    }


def main(argv: list[str] | None = None) -> int:
    """Measures and prints."""
    arguments = parse_arguments(argv)
    torch.set_num_threads(1)
    found = measure(arguments)
    print(f"{'codec':16} {'bytes':>7} {'pack MB/s':>10} {'unpack MB/s':>12} {'% of prefill':>14}", file=sys.stderr)
    for name, row in found["codecs"].items():
        shares = f"{row['pack_percent_of_prefill']:.2f} + {row['unpack_percent_of_prefill']:.2f}"
        line = f"{name:16} {row['wire_ratio']:7.4f} {row['pack_mb_per_s']:10} {row['unpack_mb_per_s']:12} {shares:>14}"
        print(line, file=sys.stderr)
    print(f"{'memory copy':16} {'':7} {found['memcpy_mb_per_s']:10}", file=sys.stderr)
    sys.stderr.flush()
    print(json.dumps({"benchmark": "codec_speed", "options": vars(arguments), **found, "machine": machine_facts()}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
