"""What the landing side keeps of its tickets: of the open ones, and of those whose writer is not known to be quiet yet."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.ticket import Ticket


@dataclass(slots=True)
class OpenLanding:
    """A granted ticket: which chunks have landed and which were refused once. `landed_at` is when one last landed; before the
    first, when the ticket was granted. Times are the pump's, in seconds.
    """

    ticket: Ticket
    block_ids: tuple[int, ...]
    expires_at: float
    landed_at: float
    landed: set[int] = field(default_factory=set)
    rejected: set[int] = field(default_factory=set)
    num_bytes: int = 0


@dataclass(slots=True)
class ClosingLanding:
    """A ticket that was given up, until its writer says CLOSED."""

    ticket: Ticket
    ask_again_at: float
