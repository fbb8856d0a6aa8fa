"""Speed of the KV plane between two processes: packed, written, verified and unpacked, beside a bare write and a memory copy.

    python -m benchmarks.transfer_bandwidth --piece-kib 256,1024,4096 --mib 256

Every number is the median of several rounds that take turns, so that a busy machine slows all of them alike. Each side runs
one torch thread and polls as the workers do. Progress goes to standard error, the result to the last line of standard output.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import statistics
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch

from benchmarks.machine import machine_facts
from protocol.errors import BadRequest, DeadlineExceeded
from protocol.ids import WorkerId, new_request_id
from protocol.layout import KvDtype, KvLayout
from protocol.ticket import Ticket
from transfer.arena import PAGE_BYTES, Arena
from transfer.codec.pool_codec import PoolCodec
from transfer.nixl import NixlTransport, NixlWrite
from transfer.pump import BUSY_POLL_S, IDLE_POLL_S
from transfer.transport import Arenas, WriteRequest, WriteState

KIB, MIB = 1024, 1024 * 1024
ROUND_DEADLINE_S = 60.0
IDLE_S = 3.0
POOL_BLOCKS = 64
LAYOUT = KvLayout("transfer-bandwidth", 24, 2, 64, KvDtype.BFLOAT16, 16)
"""12 KiB a token: a model of half a billion parameters."""
TAG = struct.Struct("<IIQ")
LANDING, BARE = "landing", "bare"


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure. `window` slots are under way at a time."""

    piece_kib: tuple[int, ...]
    mib: int
    window: int
    rounds: int
    progress_delay_us: int | None

    @property
    def slot_bytes(self) -> int:
        """Slots hold the largest piece."""
        return -(-max(self.piece_kib) * KIB // PAGE_BYTES) * PAGE_BYTES


def parse_arguments(argv: list[str] | None = None) -> Options:
    """The command line."""
    parser = argparse.ArgumentParser(description="Speed of the KV plane between two processes.")
    parser.add_argument("--piece-kib", default="256,1024,4096", help="sizes of one chunk, separated by commas")
    parser.add_argument("--mib", type=int, default=256, help="MiB that cross in each round")
    parser.add_argument("--window", type=int, default=4, help="slots under way at a time")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--progress-delay-us", type=int, help="run NIXL's progress thread with this delay (default: none)"
    )
    given = parser.parse_args(argv)
    pieces = tuple(int(text) for text in given.piece_kib.split(","))
    if min(pieces) < 16:
        raise BadRequest(f"a piece holds at least one token of 12 KiB: --piece-kib {given.piece_kib} is too small")
    return Options(pieces, given.mib, given.window, given.rounds, given.progress_delay_us)


class Side:
    """What both processes have: an agent, an arena, a pool and a codec."""

    def __init__(self, name: str, options: Options, *, is_receiver: bool) -> None:
        torch.set_num_threads(1)
        self.arena = Arena(options.window, options.slot_bytes)
        arenas = Arenas(self.arena, None) if is_receiver else Arenas(None, self.arena)
        self.worker = WorkerId.fresh(name)
        self.transport = NixlTransport(self.worker, arenas, progress_delay_us=options.progress_delay_us)
        shape = (LAYOUT.num_layers, 2, POOL_BLOCKS, LAYOUT.block_size, LAYOUT.num_kv_heads, LAYOUT.head_dim)
        self.codec = PoolCodec(torch.ones(shape, dtype=torch.bfloat16), LAYOUT)
        self.block_ids = torch.randperm(POOL_BLOCKS, generator=torch.Generator().manual_seed(0)).tolist()

    def ticket(self, num_tokens: int) -> Ticket:
        """A ticket of one chunk, used again and again: both sides build the same."""
        return Ticket(
            request_id="5" * len(new_request_id()),
            prefill_worker=self.worker,
            decode_worker=self.worker,
            generation=1,
            slots=(0,),
            slot_bytes=self.arena.slot_bytes,
            first_token=0,
            num_tokens=num_tokens,
            chunk_tokens=num_tokens,
            dtype=LAYOUT.dtype,
            lease_s=ROUND_DEADLINE_S,
        )


def drive(step: Callable[[], bool], is_over: Callable[[], bool], pause_s: float = BUSY_POLL_S) -> float:
    """Runs `step`, pausing whenever it found nothing to do, until `is_over`; the seconds that took."""
    start = time.perf_counter()
    while not is_over():
        if time.perf_counter() - start > ROUND_DEADLINE_S:
            raise DeadlineExceeded(f"a round did not end within {ROUND_DEADLINE_S} s")
        if not step():
            time.sleep(pause_s)
    return time.perf_counter() - start


def receive(pipe: Connection, options: Options) -> None:
    """The receiver's process: takes orders from the pipe, one round each, until it is told to stop."""
    side = Side("receiver", options, is_receiver=True)
    pipe.send(side.transport.address())
    side.transport.connect(pipe.recv())
    while True:
        order, num_pieces, num_tokens = pipe.recv()
        if order == "stop":
            break
        if order == "idle":
            pipe.send(idle_core_fraction(side))
            continue
        left = num_pieces

        def step(order: str = order, num_tokens: int = num_tokens) -> bool:
            nonlocal left
            arrived = side.transport.notifications()
            for peer, tag in arrived:
                _, slot, num_bytes = TAG.unpack(tag)
                if order == LANDING:
                    chunk = side.arena.slot(slot)[:num_bytes]
                    side.codec.unpack(side.ticket(num_tokens), 0, side.block_ids, chunk)
                side.transport.notify(peer, tag)
                left -= 1
            return bool(arrived)

        drive(step, lambda: left == 0)  # noqa: B023 - run at once
        pipe.send("done")
    side.transport.close()


def idle_core_fraction(side: Side) -> float:
    """Share of a core that this process uses while nothing happens, polling as an idle worker does."""
    before = _cpu_seconds()
    start = time.perf_counter()
    drive(lambda: bool(side.transport.notifications()), lambda: time.perf_counter() - start > IDLE_S, IDLE_POLL_S)
    return (_cpu_seconds() - before) / (time.perf_counter() - start)


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class SenderRound:
    """Sends `num_pieces` pieces, a window at a time; a slot is used again when its credit has come back."""

    def __init__(self, side: Side, peer: WorkerId, order: str, num_pieces: int, num_tokens: int) -> None:
        self.side, self.peer, self.order = side, peer, order
        self.num_left, self.num_credits_due = num_pieces, num_pieces
        self.num_tokens = num_tokens
        self.ticket = side.ticket(num_tokens)
        self.free = deque(range(side.arena.num_slots))
        self.writes: list[NixlWrite] = []
        self.num_bytes = self._pack(0)

    def run(self) -> float:
        """Bytes a second, from the first pack to the last credit."""
        num_pieces = self.num_left
        seconds = drive(self._step, lambda: self.num_credits_due == 0 and not self.writes)
        return num_pieces * self.num_bytes / seconds

    def _pack(self, slot: int) -> int:
        return self.side.codec.pack(self.ticket, 0, self.side.block_ids, self.side.arena.slot(slot))

    def _step(self) -> bool:
        arrived = self.side.transport.notifications()
        for _, tag in arrived:
            self.free.append(TAG.unpack(tag)[1])
            self.num_credits_due -= 1
        self.writes = [one for one in self.writes if self.side.transport.state(one) is WriteState.PENDING]
        can_post = bool(self.free and self.num_left)
        if can_post:
            slot = self.free.popleft()
            num_bytes = self._pack(slot) if self.order == LANDING else self.num_bytes
            tag = TAG.pack(self.num_left, slot, num_bytes)
            self.writes.append(self.side.transport.write(WriteRequest(self.peer, slot, slot, num_bytes, tag)))
            self.num_left -= 1
        return bool(arrived) or can_post


def copy_rate(num_bytes: int, num_pieces: int) -> float:
    """Bytes a second of a plain copy of pieces of this size."""
    source, target = bytearray(num_bytes), memoryview(bytearray(num_bytes))
    start = time.perf_counter()
    for _ in range(num_pieces):
        target[:] = source
    return num_pieces * num_bytes / (time.perf_counter() - start)


def measure_piece(side: Side, peer: WorkerId, pipe: Connection, options: Options, piece_kib: int) -> dict[str, Any]:
    """All three rates at one size, in MB a second."""
    num_tokens = side.codec.chunk_tokens(LAYOUT.dtype, piece_kib * KIB)
    num_pieces = max(options.window, options.mib * MIB // (piece_kib * KIB))
    found: dict[str, list[float]] = {LANDING: [], BARE: [], "memcpy": []}
    num_bytes = 0
    for turn in range(options.rounds + 1):
        for order in (BARE, LANDING):
            pipe.send((order, num_pieces, num_tokens))
            one = SenderRound(side, peer, order, num_pieces, num_tokens)
            num_bytes = one.num_bytes
            rate = one.run()
            pipe.recv()
            if turn:  # the first round warms up
                found[order].append(rate)
        found["memcpy"].append(copy_rate(num_bytes, num_pieces))
    medians = {name: statistics.median(rates) for name, rates in found.items()}
    return {
        "piece_kib": piece_kib,
        "chunk_bytes": num_bytes,
        "chunk_tokens": num_tokens,
        **{f"{name}_mb_per_s": round(rate / 1e6, 1) for name, rate in medians.items()},
        "ratio": round(medians[LANDING] / medians[BARE], 3),
    }


def measure(options: Options) -> dict[str, Any]:
    """Starts the receiver, measures every size and the idle agent, and ends both."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=receive, args=(theirs, options), daemon=True)
    process.start()
    side = Side("sender", options, is_receiver=False)
    address = pipe.recv()
    side.transport.connect(address)
    pipe.send(side.transport.address())
    pieces = []
    for piece_kib in options.piece_kib:
        pieces.append(measure_piece(side, address.worker, pipe, options, piece_kib))
        print(pieces[-1], file=sys.stderr)
    pipe.send(("idle", 0, 0))
    idle = pipe.recv()
    pipe.send(("stop", 0, 0))
    process.join(ROUND_DEADLINE_S)
    wire = side.transport.protocols()
    side.transport.close()
    return {
        "benchmark": "transfer_bandwidth",
        "machine": machine_facts(),
        "wire": wire,
        "threads": 1,
        "window": options.window,
        "rounds": options.rounds,
        "mib": options.mib,
        "progress_delay_us": options.progress_delay_us,
        "pieces": pieces,
        "idle_core_fraction": round(idle, 4),
        **{f"ratio_to_bare_write_{one['piece_kib']}_kib": one["ratio"] for one in pieces},
    }


def main() -> None:
    """Runs the benchmark and prints its result."""
    print(json.dumps(measure(parse_arguments())))


if __name__ == "__main__":
    main()
