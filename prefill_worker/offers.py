"""What of a prompt's KV is offered to the sender, and when. How it crosses is the sender's to decide."""

from __future__ import annotations

from engine.batch import SequenceSlice
from prefill_worker.config import Push
from prefill_worker.importance import wants_window
from prefill_worker.sequence import PrefillSequence
from transfer.shipping import Sender


class Offers:
    """Belongs to the step thread. A prompt without a ticket offers nothing."""

    def __init__(self, sender: Sender, push: Push) -> None:
        self._sender = sender
        self._push = push

    def cached(self, sequence: PrefillSequence) -> None:
        """Offers what came from the prefix cache: it can cross while the rest is computed. Where it is written by its
        importance, it goes with the first slice, which tells that.
        """
        ticket, table = sequence.ticket, sequence.table
        if ticket is None or table is None or not sequence.num_cached:
            return
        if self._push is not Push.END and not wants_window(ticket):
            self._sender.computed(ticket, sequence.num_cached, tuple(table.block_ids))

    def computed(self, sequence: PrefillSequence, part: SequenceSlice) -> None:
        """Offers all that is there after a slice."""
        if sequence.ticket is None:
            return
        if part.draws:
            self._sender.sampled(sequence.ticket)  # first: what is offered now can hide behind nothing
        if part.draws or self._push is not Push.END:
            self._sender.computed(sequence.ticket, part.end, tuple(part.block_ids), sequence.importance)
