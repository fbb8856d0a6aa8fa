"""`qba`: quota- and debt-bounded ageing.

Only the idea is published: to bound how far ageing may override an order by predicted length. The rule is this project's:

1. Requests are ranked by what is left of their predicted work, as in `srpt`. One that came `age_s` ago is *aged*.
2. Aged requests own the share `quota` of every step's prefill tokens, Q. While one waits or is read, what they did not take of
   it is owed to them: debt <- debt + Q - what they took, never above `max_debt_steps` * Q; without any, debt is 0.
3. A step serves aged requests, the oldest first, up to Q + debt; the rest of the step, to them too, goes by rank.
4. For blocks, the oldest aged request comes first, unless an older one is read already; then everybody by rank. So the lifted
   hold the place of one sequence, not of all.

Constants: `QUOTA`, `MAX_DEBT_STEPS`, and an age of `AGE_TARGETS` times the TTFT that is aimed at: start values, not tuned.

Bound: by rank goes at least 1 - quota of each step, but for `max_debt_steps` * Q once. A request of x prompt tokens with A
tokens in older requests has been read, once it is aged, within (A + x) / Q steps and, if no sequence may be added at first,
the steps that those need that are read by then (`max_steps`). Rank alone promises nothing: requests that come later may go
before it in the rest of the steps. Not bounded: what short requests lose while an aged one, first in line, waits for blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from protocol.errors import ConfigError
from scheduling.policies.policy import Queue, Room, fill
from scheduling.policies.srpt import ShortestRemainingFirst
from scheduling.work import Grant, Work

QUOTA = 0.2
MAX_DEBT_STEPS = 4.0
AGE_TARGETS = 2.0


@dataclass(frozen=True, slots=True)
class QbaSettings:
    """See the module. `quota` lies between 0 and 1, both excluded."""

    age_s: float
    quota: float = QUOTA
    max_debt_steps: float = MAX_DEBT_STEPS

    def __post_init__(self) -> None:
        is_finite = math.isfinite(self.age_s) and math.isfinite(self.max_debt_steps)
        if not (0.0 < self.quota < 1.0 and is_finite and self.age_s >= 0.0 and self.max_debt_steps >= 1.0):
            raise ConfigError(
                f"aged requests need a quota between 0 and 1, an age of at least 0 s and a debt of at least 1 step: {self}"
            )


class QuotaBoundedAging(ShortestRemainingFirst):
    """By rank, with a quota for those that have waited long. Remembers the debt, in tokens: one for each worker."""

    def __init__(self, settings: QbaSettings) -> None:
        self.settings = settings
        self.debt_tokens = 0.0

    def order(self, queue: Queue) -> Iterator[Work]:
        """The oldest aged request, if nothing older is read already; then by rank."""
        ranked = super().order(queue)
        oldest = queue.waiting.oldest
        if oldest is None or not self._is_aged(oldest, queue.now):
            return ranked
        if any(work.arrival < oldest.arrival for work in queue.prefilling):
            return ranked
        return chain((oldest,), (work for work in ranked if work is not oldest))

    def divide(self, queue: Queue, room: Room) -> list[Grant]:
        """Aged requests up to quota and debt, then everybody by rank."""
        aged = sorted((work for work in queue.prefilling if self._is_aged(work, queue.now)), key=_by_arrival)
        quota = self.settings.quota * room.num_tokens
        allowed = min(int(quota + self.debt_tokens), room.num_tokens)
        lifted = {one.request_id: one.num_tokens for one in fill(aged, Room(allowed, room.num_sequences))}
        num_lifted = sum(lifted.values())
        grants = _add_by_rank(lifted, sorted(queue.prefilling, key=self.key), room)
        oldest = queue.waiting.oldest
        if not aged and (oldest is None or not self._is_aged(oldest, queue.now)):
            self.debt_tokens = 0.0
            return grants
        # At least one token, or a small step's quota would never come to one. What aged requests get by rank pays nothing
        # off: it may go to the youngest of them, and the oldest is promised all of the quota.
        max_debt_tokens = max(1.0, self.settings.max_debt_steps * quota)
        self.debt_tokens = min(max_debt_tokens, self.debt_tokens + quota - num_lifted)
        return grants

    def max_steps(self, num_tokens: int, num_step_tokens: int, num_read_tokens: int = 0) -> int:
        """Most steps from when a request is aged to when it has been read: `num_tokens` are its own and those of older ones,
        `num_read_tokens` those of prompts that hold places that it may have to wait for. Every step has `num_step_tokens` for
        prompts, nobody's chunks are capped, and there are blocks.
        """
        quota = self.settings.quota * num_step_tokens
        return math.ceil((num_tokens + 1) / quota) + math.ceil(num_read_tokens / num_step_tokens) + 2

    def _is_aged(self, work: Work, now: float) -> bool:
        return now - work.arrival_s >= self.settings.age_s


def _by_arrival(work: Work) -> int:
    return work.arrival


def _add_by_rank(lifted: dict[str, int], ranked: list[Work], room: Room) -> list[Grant]:
    """One grant for each sequence: what it was lifted for and what its rank gives it of the rest."""
    granted = dict(lifted)
    num_left = room.num_tokens - sum(granted.values())
    for work in ranked:
        has_place = work.request_id in granted or len(granted) < room.num_sequences
        num_before = granted.get(work.request_id, 0)
        num_tokens = min(work.num_next - num_before, num_left)
        if num_tokens > 0 and has_place:
            granted[work.request_id] = num_before + num_tokens
            num_left -= num_tokens
    return [Grant(request_id, num_tokens) for request_id, num_tokens in granted.items()]
