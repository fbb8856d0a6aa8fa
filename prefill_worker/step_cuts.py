"""Into which steps a worker's prompts are cut: those whose transfer is planned so that their KV crosses while they are read.

How fast KV can cross comes with the plan. How fast it is computed is measured here, in steps that are at least half full: a
prediction that had learned from prompts that were cut, which are read more slowly, would cut the next ones smaller still. And
at the beginning of prompts, which is much the same for all; towards the end of long ones a token takes longer.
"""

from __future__ import annotations

from dataclasses import replace

from engine.batch import StepBatch
from prefill_worker.importance import wants_window
from prefill_worker.sequence import PrefillSequence
from protocol.layout import KvLayout
from protocol.ticket import Ticket
from scheduling.prefill_steps import ShippedPrompt
from scheduling.work import Work

SMOOTHING = 0.2
"""Weight of the newest step."""
BEGINNING_STEPS = 2
"""So many full steps are a prompt's beginning."""
SIXTEEN_BIT_BYTES = 2


class StepCuts:
    """Belongs to the step thread."""

    def __init__(self, layout: KvLayout, full_step_tokens: int) -> None:
        self._layout = layout
        self._full_step_tokens = full_step_tokens
        self._tokens_per_s = 0.0

    def learn(self, batch: StepBatch, seconds: float) -> None:
        """A step took so long. Small ones tell nothing of full ones, nor do those deep in a prompt."""
        num_tokens = sum(part.num_tokens for part in batch.slices)
        is_deep = any(part.end > BEGINNING_STEPS * self._full_step_tokens for part in batch.slices)
        if seconds <= 0.0 or is_deep or 2 * num_tokens < self._full_step_tokens:
            return
        rate = num_tokens / seconds
        weight = SMOOTHING if self._tokens_per_s else 1.0
        self._tokens_per_s += weight * (rate - self._tokens_per_s)

    def work_of(self, sequence: PrefillSequence) -> Work:
        """What the scheduler sees of a prompt for the next step."""
        ticket, plan, work = sequence.ticket, sequence.plan, sequence.work
        if ticket is None or plan is None:
            return work
        produced = self._tokens_per_s * _wire_bytes_per_token(ticket, self._layout)
        shipped = ShippedPrompt(
            num_tokens=work.num_known,
            first_sent=ticket.first_token,
            chunk_tokens=ticket.chunk_tokens,
            tail_start=ticket.tail_start,
            headroom=plan.pace.allowed_bytes_per_second / (produced or plan.produced_bytes_per_second),
            full_step_tokens=self._full_step_tokens,
            num_cached_at_start=sequence.num_cached_at_start,
            waits_for_step=wants_window(ticket),
        )
        return replace(work, max_step_tokens=shipped.max_step_tokens(sequence.num_cached))


def _wire_bytes_per_token(ticket: Ticket, layout: KvLayout) -> float:
    rule = ticket.rule
    element_bytes = ticket.dtype.num_bytes if rule.is_lossless else rule.budget * SIXTEEN_BIT_BYTES
    return layout.elements_per_token * element_bytes
