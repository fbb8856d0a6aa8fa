"""Which tickets need to know how much their tokens matter, and what is known of it as a prompt is read slice by slice."""

from __future__ import annotations

from engine.attention.importance import MAX_QUERIES
from engine.batch import SequenceSlice, TokenImportance
from protocol.ticket import Ticket
from protocol.wire_rule import Importance
from transfer.codec.budget import only_tier


def wants_window(ticket: Ticket | None) -> bool:
    """Whether the KV is written by the attention of the last queries: not if no token may be written otherwise anyway."""
    return ticket is not None and ticket.rule.importance is Importance.WINDOW and only_tier(ticket.rule) is None


def after_slice(
    before: TokenImportance | None, part: SequenceSlice, found: TokenImportance, first_query: int = 0
) -> TokenImportance:
    """The importance of all positions cached after a slice, `[part.end]`, from what the slice found and what was known.

    A slice shorter than `MAX_QUERIES` speaks for its own queries only; for the others of the last `MAX_QUERIES` stands what
    was known before it. So a short last slice does not decide alone, and the sum stays 1. Those before `first_query`, whose
    KV came from the prefix cache, were never asked.
    """
    num_new = min(part.num_tokens, MAX_QUERIES)
    num_old = 0 if before is None else min(part.start - first_query, MAX_QUERIES - num_new)
    if before is None or not num_old:
        return found
    mixed = found * (num_new / (num_new + num_old))
    mixed[: len(before)] += before * (num_old / (num_new + num_old))
    return mixed
