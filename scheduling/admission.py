"""Whether a request may take blocks now, who gives some up when they run out, and how.

Admission keeps blocks back for what those that run are predicted to generate. Source: the rule of Glia's head-room allocator
(reserve for growth, the first in line blocks the rest), which reserves a share of the prompt and so nothing to speak of for a
short prompt with a long answer; here it is a share of the predicted output. Does not know who is first in line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from scheduling.policies.priority import level_of
from scheduling.work import Work


def has_headroom(num_needed: int, num_free: int, num_reserved: int) -> bool:
    """Whether `num_needed` blocks may be taken out of `num_free`, of which `num_reserved` are kept for others."""
    return num_needed + num_reserved <= num_free


def reserved_blocks(running: Iterable[Work], block_size: int, kv_reserve: float) -> int:
    """Blocks that are kept free for sequences that hold those of their known tokens.

    For each of them, the share `kv_reserve` (0 to 1) of its predicted output that is still to come, and at least one block:
    those that decode can then cross their next block border before anybody has to be preempted.
    """
    return blocks_kept(((work.num_known, work.num_output_left, 1) for work in running), block_size, kv_reserve)


def output_blocks(work: Work, block_size: int, kv_reserve: float) -> int:
    """Blocks, beyond those of its known tokens, for the share `kv_reserve` of the output that is predicted to come.

    A request that asks for blocks needs those of its known tokens and these.
    """
    return blocks_ahead(work.num_known, work.num_output_left, block_size, kv_reserve)


def blocks_ahead(num_known: int, num_output_left: int, block_size: int, kv_reserve: float) -> int:
    """As `output_blocks`, for a worker that has no `Work` of a sequence at hand."""
    if kv_reserve <= 0.0:
        return 0
    num_reserved = math.ceil(kv_reserve * num_output_left)
    return -(-(num_known + num_reserved) // block_size) - -(-num_known // block_size)


def blocks_kept(running: Iterable[tuple[int, int, int]], block_size: int, kv_reserve: float) -> int:
    """As `reserved_blocks`, for each running request told by its known tokens, those that are expected to follow in each
    answer, and its answers.
    """
    if kv_reserve <= 0.0:
        return sum(num_answers for _, _, num_answers in running)
    num_kept = 0
    for num_known, num_output_left, num_answers in running:
        # `blocks_ahead`, written out: a step asks this of all that run.
        num_all = num_known + math.ceil(kv_reserve * num_output_left)
        num_ahead = -(-num_all // block_size) - -(-num_known // block_size)
        num_kept += num_answers * num_ahead if num_ahead > 1 else num_answers
    return num_kept


def choose_victim(running: Sequence[Work]) -> Work | None:
    """The sequence to preempt when blocks run out: of the least urgent the youngest, so that the oldest of the most urgent
    always gets on. What has moved here is older than it seems, and counts as older than all that has not. None when empty.
    """
    return max(running, key=lambda work: (level_of(work.priority), not work.is_continued, work.arrival), default=None)


class Preemption(StrEnum):
    """What becomes of the KV of a preempted sequence."""

    RECOMPUTE = "recompute"
    SWAP = "swap"


@dataclass(frozen=True, slots=True)
class SwapPath:
    """The way to host memory and back: `bytes_per_s` each way, 0 where there is none, and `fixed_s` for each move."""

    bytes_per_s: float = 0.0
    fixed_s: float = 0.0

    def seconds(self, num_bytes: int) -> float:
        """Out and back in."""
        return 2.0 * (self.fixed_s + num_bytes / self.bytes_per_s) if self.bytes_per_s > 0.0 else math.inf


def cheaper_preemption(recompute_s: float, num_bytes: int, path: SwapPath) -> Preemption:
    """Whether to drop `num_bytes` of KV and compute it again in `recompute_s`, or to keep it elsewhere; equals: drop it."""
    return Preemption.SWAP if path.seconds(num_bytes) < recompute_s else Preemption.RECOMPUTE
