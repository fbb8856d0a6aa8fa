"""What becomes of preempted KV is a question of cost."""

from __future__ import annotations

from collections.abc import Iterator

from decode_worker.config import DecodeConfig
from decode_worker.pacing import Pacing
from decode_worker.sequence import DecodeSequence
from decode_worker.swapping import Swapping
from engine.block_pool import BlockPool, BlockTable
from tests.decode_worker.sequences import sequence
from tests.support.tiny_model import tiny_engine

NUM_BLOCKS = 8
SPACE_BYTES = 10**6


def _swapping(move_s: float, swap_bytes: int = SPACE_BYTES) -> Swapping:
    """Every move takes so long, whatever its size."""
    ticks = _ticks(move_s)
    cache = tiny_engine(num_blocks=NUM_BLOCKS).cache
    return Swapping(cache, swap_bytes, Pacing(DecodeConfig(swap_bytes=swap_bytes)), lambda: next(ticks))


def _ticks(move_s: float) -> Iterator[float]:
    now = 0.0
    while True:
        yield now
        now += move_s


def _victim(num_cached: int = 40) -> DecodeSequence:
    victim = sequence("victim", num_cached, 1, num_generated=1)
    table = BlockTable(BlockPool(NUM_BLOCKS), 16)
    table.ensure(num_cached + 1)
    victim.tables, victim.num_cached = [table], num_cached
    return victim


def test_a_slow_way_is_not_taken() -> None:
    """Forty tokens are computed faster than a second: nothing of the victim has changed."""
    swapping, victim = _swapping(move_s=1.0), _victim()
    assert not swapping.set_aside(victim)
    assert victim.tables
    assert (swapping.num_swaps, swapping.num_blocks_held) == (0, 0)


def test_a_quick_way_is_taken() -> None:
    """The blocks are given back, what was computed stays known, and the bytes both ways are counted."""
    swapping, victim = _swapping(move_s=1e-6), _victim()
    assert swapping.set_aside(victim)
    assert (victim.tables, victim.num_cached, swapping.num_blocks_held) == ([], 40, 3)
    victim.tables = [BlockTable(BlockPool(NUM_BLOCKS), 16)]
    victim.tables[0].ensure(42)
    assert swapping.bring_back(victim)
    assert (swapping.num_swaps, swapping.num_blocks_held, victim.swapped) == (1, 0, None)
    assert swapping.num_swap_bytes == 2 * 3 * 16 * tiny_engine().layout.bytes_per_token
    assert not swapping.bring_back(victim)


def test_without_room_nothing_is_set_aside() -> None:
    """No space at all, or one that is too small."""
    for swap_bytes in (0, 2 * 16 * tiny_engine().layout.bytes_per_token):
        swapping, victim = _swapping(1e-6, swap_bytes), _victim()
        assert not swapping.set_aside(victim)
        assert victim.tables
        assert victim.num_cached == 40


def test_dropping_blocks_drops_what_was_swapped() -> None:
    """So that whoever ends a sequence need not know where its KV is."""
    swapping, victim = _swapping(1e-6), _victim()
    assert swapping.set_aside(victim)
    victim.drop_blocks()
    assert (swapping.num_blocks_held, victim.num_cached, victim.swapped) == (0, 0, None)
