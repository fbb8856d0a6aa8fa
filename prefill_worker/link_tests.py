"""Link tests on a prefill worker: what happens to be in the cache is shipped under a ticket that unpacks nowhere."""

from __future__ import annotations

from concurrent.futures import Future

from protocol.layout import KvLayout
from protocol.ticket import Ticket
from transfer.shipping import Sender
from transfer.shipping_contract import ShipmentEnded

TicketKey = tuple[str, int]


def key_of(ticket: Ticket) -> TicketKey:
    """What tells the tickets of all decode workers apart."""
    return str(ticket.decode_worker), ticket.generation


class LinkTests:
    """Those under way. Reads blocks that others may be writing: what crosses is verified as bytes, not as KV."""

    def __init__(self, sender: Sender, layout: KvLayout, num_blocks: int) -> None:
        self._sender = sender
        self._layout = layout
        self._num_blocks = num_blocks
        self._running: dict[TicketKey, Future[None]] = {}

    def __contains__(self, ticket: Ticket) -> bool:
        return key_of(ticket) in self._running

    def start(self, ticket: Ticket, done: Future[None], now: float) -> None:
        """Ships under a checked ticket; `done` is told when the last chunk has been taken, or why it was not."""
        self._running[key_of(ticket)] = done
        self._sender.open(ticket, now)
        num_blocks = self._layout.num_blocks_for(ticket.num_tokens)
        self._sender.computed(ticket, ticket.num_tokens, [index % self._num_blocks for index in range(num_blocks)])

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
