"""The tags that a prefill worker sends alone: RENEW while a ticket is open, CLOSED once all writes of one given up are over.

Knows tickets and the transport; when a ticket is to be renewed or given up is the sender's word.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Any

from protocol.errors import TransferError
from protocol.ids import WorkerId
from protocol.ticket import Ticket
from transfer.frames import Frame, FrameKind
from transfer.outbox import TransferKey
from transfer.transport import Transport

log = logging.getLogger(__name__)


class SenderTags:
    """Belongs to the thread that pumps the transport."""

    def __init__(self, transport: Transport[Any]) -> None:
        self._transport = transport
        self._closing: dict[TransferKey, Ticket] = {}

    @property
    def is_closing_any(self) -> bool:
        """Whether a CLOSED is still to be said."""
        return bool(self._closing)

    def is_closing(self, key: TransferKey) -> bool:
        """Whether the CLOSED of a ticket is still to be said."""
        return key in self._closing

    def renew(self, ticket: Ticket) -> None:
        """The ticket's writer lives and still means to write."""
        self._tell(ticket.decode_worker, Frame(FrameKind.RENEW, ticket.request_id, ticket.generation))

    def closed(self, peer: WorkerId, request_id: str, generation: int) -> None:
        """Nothing is or will be written under a ticket of this peer."""
        self._tell(peer, Frame(FrameKind.CLOSED, request_id, generation))

    def close_when_quiet(self, key: TransferKey, ticket: Ticket) -> None:
        """A ticket was given up, but writes may be in flight."""
        self._closing[key] = ticket

    def finish(self, busy: Collection[TransferKey]) -> None:
        """Says CLOSED for given-up tickets none of whose writes is in flight any more."""
        for key, ticket in list(self._closing.items()):
            if key not in busy:
                del self._closing[key]
                self.closed(ticket.decode_worker, ticket.request_id, ticket.generation)

    def _tell(self, peer: WorkerId, frame: Frame) -> None:
        try:
            self._transport.notify(peer, frame.to_bytes())
        except TransferError as error:
            # A decode worker that is gone needs no word; one that lives asks again with REVOKE.
            log.warning("%s could not be told %s: %s", peer, frame.kind.name, error)
