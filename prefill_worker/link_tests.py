"""Link tests on a prefill worker: chunks of zeros are shipped under a ticket that unpacks nowhere."""

from __future__ import annotations

from concurrent.futures import Future

from protocol.ticket import Ticket
from transfer.shipping import Sender
from transfer.shipping_contract import ShipmentEnded

TicketKey = tuple[str, int]


def key_of(ticket: Ticket) -> TicketKey:
    """What tells the tickets of all decode workers apart."""
    return str(ticket.decode_worker), ticket.generation


class LinkTests:
    """Those under way. No block is read: one that was never written may hold what a lossy rule refuses to send."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._running: dict[TicketKey, Future[None]] = {}

    def __contains__(self, ticket: Ticket) -> bool:
        return key_of(ticket) in self._running

    def start(self, ticket: Ticket, done: Future[None], now: float) -> None:
        """Ships under a checked ticket; `done` is told when the last chunk has been taken, or why it was not."""
        self._running[key_of(ticket)] = done
        self._sender.open(ticket, now)
        self._sender.computed(ticket, ticket.num_tokens, block_ids=())

    def settle(self, ended: ShipmentEnded) -> bool:
        """Tells whoever waits for a test that has ended; false when the shipment is no test's."""
        done = self._running.pop(key_of(ended.ticket), None)
        if done is None:
            return False
        if done.set_running_or_notify_cancel():
            if ended.error is None:
                done.set_result(None)
            else:
                done.set_exception(ended.error)
        return True
