"""Who gets blocks, what is kept back, and who gives some up."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from scheduling.admission import (
    Preemption,
    SwapPath,
    blocks_kept,
    cheaper_preemption,
    choose_victim,
    has_headroom,
    output_blocks,
    reserved_blocks,
)
from scheduling.work import Work


def test_headroom_is_kept_for_those_that_run() -> None:
    """What is reserved for them stays free."""
    assert has_headroom(4, 10, 6)
    assert not has_headroom(5, 10, 6)


def test_every_running_sequence_has_a_block_in_reserve() -> None:
    """Even when nothing is predicted or reserved by share: it will cross a border."""
    running = [Work(str(number), 20, 19, number, num_generated=4) for number in range(3)]
    assert reserved_blocks(running, 16, 0.0) == 3
    assert reserved_blocks(running, 16, 1.0) == 3
    assert reserved_blocks([], 16, 1.0) == 0


def test_reserved_is_predicted_output_and_not_a_share_of_the_prompt() -> None:
    """A short prompt with a long answer reserves much, a long prompt with a short one little."""
    talkative, terse = Work("a", 10, 0, 1, num_predicted_output=640), Work("b", 4000, 0, 2, num_predicted_output=16)
    assert output_blocks(talkative, 16, 1.0) == 40
    assert output_blocks(talkative, 16, 0.5) == 20
    assert output_blocks(terse, 16, 1.0) == 1
    assert output_blocks(talkative, 16, 0.0) == 0


@given(st.integers(1, 5000), st.integers(0, 400), st.integers(0, 400), st.floats(0, 1), st.sampled_from([1, 16, 64]))
def test_known_and_reserved_blocks_hold_what_is_predicted(
    num_prompt: int, num_generated: int, num_predicted: int, share: float, block_size: int
) -> None:
    """Blocks of the known tokens and the reserved ones hold the share that is kept back, and not a block more."""
    num_known = num_prompt + num_generated
    work = Work("a", num_known, 0, 1, num_generated=num_generated, num_predicted_output=num_predicted)
    num_blocks = math.ceil(num_known / block_size) + output_blocks(work, block_size, share)
    wanted = num_known + (math.ceil(share * work.num_output_left) if share > 0 else 0)
    assert wanted <= num_blocks * block_size < wanted + block_size


@given(st.lists(st.tuples(st.integers(1, 500), st.integers(1, 400)), max_size=5), st.floats(0, 1), st.integers(1, 3))
def test_kept_for_numbers_is_what_is_reserved_for_works(
    sizes: list[tuple[int, int]], share: float, num_answers: int
) -> None:
    """Told by known and expected tokens, with several answers to each, it is that many times as much."""
    works = [Work(str(known), known, 0, 1, num_predicted_output=left) for known, left in sizes]
    kept = blocks_kept(((known, left, num_answers) for known, left in sizes), 16, share)
    assert kept == num_answers * reserved_blocks(works, 16, share)


def test_the_youngest_of_the_least_urgent_is_the_victim() -> None:
    """So that the oldest of the most urgent always gets on; nobody is chosen among none."""
    assert choose_victim([Work("a", 9, 8, 5), Work("b", 9, 8, 7), Work("c", 9, 8, 6)]) == Work("b", 9, 8, 7)
    urgent, usual = Work("a", 9, 8, 7, priority=-1), Work("b", 9, 8, 5)
    assert choose_victim([urgent, usual]) == usual
    moved = Work("c", 9, 8, 9, is_continued=True)
    assert choose_victim([moved, usual]) == usual
    assert choose_victim([moved]) == moved
    assert choose_victim([]) is None


def test_kv_is_kept_elsewhere_only_when_that_is_quicker() -> None:
    """Both ways of the swap count against computing again; without a path there is nothing to choose."""
    path = SwapPath(bytes_per_s=1e9, fixed_s=0.01)
    assert cheaper_preemption(1.0, 100_000_000, path) is Preemption.SWAP
    assert cheaper_preemption(0.2, 100_000_000, path) is Preemption.RECOMPUTE
    assert cheaper_preemption(1e9, 1, SwapPath()) is Preemption.RECOMPUTE
