"""The prompts that wait, in the order of a policy but for what is resumed, and which of them get blocks.

Knows nothing of steps or transfers.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from engine.block_pool import BlockPool
from prefill_worker.prompt_blocks import PromptBlocks
from prefill_worker.sequence import PrefillSequence, Submission
from scheduling.admission import has_headroom
from scheduling.policies.policy import Policy, Queue
from scheduling.waiting_line import WaitingLine


class Admission:
    """Belongs to the step thread; `waiting`, by request, may be looked at by others."""

    def __init__(self, policy: Policy, blocks: PromptBlocks, pool: BlockPool) -> None:
        self.line = WaitingLine(lambda work: (not work.is_resumed, *policy.key(work)))
        self.waiting: dict[str, PrefillSequence] = {}
        self._policy = policy
        self._blocks = blocks
        self._pool = pool
        self._num_arrived = 0

    def add(self, prompt: Submission, now: float) -> PrefillSequence:
        """A prompt begins to wait, at the place that what is cached of it now gives it."""
        self._num_arrived += 1
        sequence = prompt.sequence(self._num_arrived, now)
        sequence.begin_at(self._blocks.num_found_tokens(sequence))
        self.waiting[prompt.request.request_id] = sequence
        self.line.add(sequence.work)
        return sequence

    def remove(self, request_id: str) -> None:
        """A prompt waits no longer, if it did."""
        self.waiting.pop(request_id, None)
        self.line.remove(request_id)

    def admit(self, queue: Queue, max_sequences: int) -> Iterator[PrefillSequence]:
        """Gives blocks for their whole prompt to waiting requests, in order, while there is room; the first in line that gets
        none blocks the rest.
        """
        ordered = self._policy.order(queue)
        if (head := next(iter(self.line), None)) is not None and head.is_resumed:
            ordered = iter(sorted(ordered, key=lambda work: not work.is_resumed))  # a policy may have lifted somebody
        for work in islice(ordered, max_sequences):
            sequence = self.waiting[work.request_id]
            if not has_headroom(self._blocks.num_needed(sequence), self._pool.num_free, 0):
                return
            self._blocks.give(sequence)
            self.remove(work.request_id)
            yield sequence
