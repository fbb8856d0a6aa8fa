"""Link tests on a prefill worker: chunks of zeros are shipped under a ticket that unpacks nowhere."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

from prefill_worker.sequence import fail_with
from protocol.ticket import Ticket, TicketKey
from transfer.commands import CommandQueue
from transfer.shipping import Sender
from transfer.shipping_contract import ShipmentEnded


class LinkTests:
    """Those under way. No block is read: one that was never written may hold what a lossy rule refuses to send."""

    def __init__(
        self, sender: Sender, inbox: CommandQueue, check: Callable[[Ticket], None], clock: Callable[[], float]
    ) -> None:
        """`check` raises what is wrong with a ticket; like all but `ask`, it belongs to the thread that runs the inbox."""
        self._sender = sender
        self._inbox = inbox
        self._check = check
        self._clock = clock
        self._running: dict[TicketKey, Future[None]] = {}

    def __contains__(self, ticket: Ticket) -> bool:
        return ticket.key in self._running

    def ask(self, ticket: Ticket) -> Future[None]:
        """Ships under a ticket, as soon as the inbox is run; done when the last chunk has been taken, or with what is wrong."""
        done: Future[None] = Future()
        started = self._inbox.submit(lambda: self._start(ticket, done))
        started.add_done_callback(lambda future: fail_with(done, future))
        return done

    def settle(self, ended: ShipmentEnded) -> bool:
        """Tells whoever waits for a test that has ended; false when the shipment is no test's."""
        done = self._running.pop(ended.ticket.key, None)
        if done is None:
            return False
        if done.set_running_or_notify_cancel():
            if ended.error is None:
                done.set_result(None)
            else:
                done.set_exception(ended.error)
        return True

    def _start(self, ticket: Ticket, done: Future[None]) -> None:
        self._check(ticket)
        self._running[ticket.key] = done
        self._sender.test(ticket, self._clock())
