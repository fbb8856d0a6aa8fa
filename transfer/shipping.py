"""The prefill worker's side of a transfer: packs chunks as they are computed, writes them within the window, takes credits.

Knows tickets, slots and block ids; when a chunk is computed is the worker's word, what its bytes mean the codec's. Every
opened ticket ends in exactly one `ShipmentEnded`; after it no block of the request is read again. The outbox slots of writes
that are still in flight stay lent until the transport says that they are terminal.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from protocol.errors import (
    BadChunk,
    Cancelled,
    KvferryError,
    LayoutMismatch,
    StaleTicket,
    TransferError,
    WorkerUnavailable,
)
from protocol.ids import WorkerId
from protocol.pace import Pace, TransferPlan
from protocol.ticket import Ticket, TicketKey
from transfer.arena import Arena
from transfer.commands import CommandQueue
from transfer.frames import Frame, FrameKind
from transfer.outbox import Destination, Outbox
from transfer.pacer import Pacer
from transfer.progress import OnProgress, ProgressReports
from transfer.sender_tags import SenderTags
from transfer.shipment import ChunkDue, Shipment, SpentTickets
from transfer.shipping_contract import HiddenBytes, ImportanceScores, Packer, ShipmentEnded, ShippingConfig
from transfer.transport import PeerAddress, Transport

log = logging.getLogger(__name__)


class Sender:
    """`pump` and `close` are for one thread, all else for any. `hidden`, a value that is only ever replaced, may be read by
    any as well. `clock`, by which links are measured, is replaced before the first chunk or never.
    """

    def __init__(
        self,
        worker: WorkerId,
        transport: Transport[Any],
        arena: Arena,
        packer: Packer,
        config: ShippingConfig | None = None,
    ) -> None:
        self.worker = worker
        self.commands = CommandQueue()
        self.config = config or ShippingConfig()
        self.on_ended: Callable[[], None] = lambda: None
        self.clock: Callable[[], float] = time.monotonic
        self.num_stale_frames = 0
        self.hidden = HiddenBytes()
        self._transport = transport
        self._arena = arena
        self._outbox = Outbox(transport, arena, lambda: self.clock())
        self.slots = self._outbox.slots
        self.links = self._outbox.links
        self._packer = packer
        self._open: dict[TicketKey, Shipment] = {}
        self._tags = SenderTags(transport)
        self._spent = SpentTickets()
        self._peers: set[WorkerId] = set()
        self._ended: deque[ShipmentEnded] = deque()

    @property
    def is_active(self) -> bool:
        """Whether a ticket is open or a write in flight."""
        return bool(self._open or self._tags.is_closing_any or self._outbox.busy_keys)

    def address(self) -> PeerAddress:
        """How peers reach this side."""
        return self._transport.address()

    def bytes_by_tier(self) -> Mapping[str, int]:
        """Bytes that have crossed so far, by their precision."""
        return self._packer.bytes_by_tier()

    def is_connected(self, worker: WorkerId) -> bool:
        """Whether chunks can be written to a decode worker."""
        return worker in self._peers

    def protocols(self) -> str:
        """The wire in use, for people."""
        return self._transport.protocols()

    def open(
        self, ticket: Ticket, now: float, plan: TransferPlan | None = None, on_progress: OnProgress | None = None
    ) -> None:
        """Takes a ticket on: it is kept alive from now on, and must be ended by its chunks or by `abort`. With a plan it keeps
        to the plan's pace, and `on_progress` is told how it goes, at last that it has ended.
        """
        pacer = None if plan is None else Pacer(plan.pace, now, self.config)
        reports = None if plan is None or on_progress is None else ProgressReports(ticket.request_id, on_progress)
        self.commands.post(lambda: self._start(Shipment(ticket, now, self.config.stall_s, pacer, reports)))

    def test(self, ticket: Ticket, now: float) -> None:
        """Ships zeros under a link test's ticket. Given up sooner than a prompt: whoever waits for it can ask again."""
        self.commands.post(lambda: self._start(Shipment(ticket, now, self.config.test_stall_s)))
        self.computed(ticket, ticket.num_tokens, block_ids=())

    def set_pace(self, request_id: str, pace: Pace, now: float) -> None:
        """Another pace for a planned transfer, from its next chunk on, unless a later order is known. One that is not open
        is ignored.
        """
        self.commands.post(lambda: self._set_pace(request_id, pace, now))

    def computed(
        self, ticket: Ticket, num_tokens: int, block_ids: Sequence[int], importance: ImportanceScores | None = None
    ) -> None:
        """The KV of tokens `[0, num_tokens)` is in the cache, in `block_ids`; it is shipped while the caller goes on.

        `importance` `[num_tokens]` is for what is packed from now on, where the ticket's rule asks for it.
        """
        self._tell_shipment(ticket, lambda one: one.computed(num_tokens, block_ids, importance))

    def sampled(self, ticket: Ticket) -> None:
        """The prompt's first token was sampled just now; said before its last tokens are offered by `computed`."""
        self._tell_shipment(ticket, Shipment.sampled)

    def abort(self, ticket: Ticket, error: KvferryError) -> None:
        """Gives a ticket up, if it is still open; its `ShipmentEnded` follows."""
        self._tell_shipment(ticket, lambda one: one.fail(error))

    def take_ended(self) -> list[ShipmentEnded]:
        """Tickets that have ended since the last call."""
        return [self._ended.popleft() for _ in range(len(self._ended))]

    def connect(self, peer: PeerAddress) -> Future[None]:
        """Makes a decode worker's landing zone writable from here, and forgets its earlier incarnations.

        Raises `LayoutMismatch` at once when its slots are larger than the outbox's: a chunk would not fit.
        """
        if peer.zone is not None and peer.zone.slot_bytes > self._arena.slot_bytes:
            raise LayoutMismatch(
                f"{peer.worker} lands {peer.zone.slot_bytes} bytes a slot, {self.worker} has {self._arena.slot_bytes}"
            )
        return self.commands.submit(lambda: self._connect(peer))

    def forget(self, worker: WorkerId) -> Future[None]:
        """Ends all transfers to a decode worker that is gone."""
        return self.commands.submit(lambda: self._forget(worker))

    def pump(self, now: float) -> bool:
        """Runs commands, takes what has arrived, writes what is due, and ends what is over."""
        num_done = self.commands.run_due()
        for peer, raw in self._transport.notifications():
            num_done += 1
            try:
                self._take(peer, Frame.from_bytes(raw), now)
            except BadChunk as error:
                log.warning("a tag from %s is not ours: %s", peer, error)
                self.num_stale_frames += 1
        num_done += self._settle_writes()
        for shipment in list(self._open.values()):
            num_done += self._post_one(shipment, now)
            self._keep_or_end(shipment, now)
        self._tags.finish(self._outbox.busy_keys)
        return num_done > 0

    def close(self) -> None:
        """Ends the transport; what is open ends with it."""
        for shipment in list(self._open.values()):
            self._end(shipment, Cancelled("the worker stops"), shipment.moved_at)
        self.commands.refuse(WorkerUnavailable(f"{self.worker} has ended its transfers"))
        self._transport.close()

    def _start(self, shipment: Shipment) -> None:
        ticket = shipment.ticket
        if shipment.key in self._open:
            raise StaleTicket(f"ticket {ticket.generation} of {ticket.decode_worker} is being served already")
        if shipment.key in self._spent:
            shipment.fail(
                StaleTicket(f"ticket {ticket.generation} of {ticket.decode_worker} was revoked or used before")
            )
        for earlier in self._open.values():
            if earlier.ticket.request_id == ticket.request_id:
                earlier.reports = (
                    None  # which name the request: the end of an earlier try would be taken for this one's
                )
        self._open[shipment.key] = shipment

    def _set_pace(self, request_id: str, pace: Pace, ordered_at: float) -> None:
        for shipment in self._open.values():
            if shipment.pacer is not None and shipment.ticket.request_id == request_id:
                shipment.pacer.set_pace(pace, ordered_at)

    def _tell_shipment(self, ticket: Ticket, act: Callable[[Shipment], None]) -> None:
        def run() -> None:
            if (shipment := self._open.get(ticket.key)) is not None:
                act(shipment)

        self.commands.post(run)

    def _take(self, peer: WorkerId, frame: Frame, now: float) -> None:
        key = (str(peer), frame.generation)
        shipment = self._open.get(key)
        if frame.kind is FrameKind.REVOKE:
            self._take_revoke(peer, frame, shipment)
        elif shipment is None or not shipment.take(frame, now):
            self.num_stale_frames += 1

    def _take_revoke(self, peer: WorkerId, frame: Frame, shipment: Shipment | None) -> None:
        key = (str(peer), frame.generation)
        self._spent.add(key)
        if shipment is not None:
            shipment.fail(Cancelled(f"{peer} gave the transfer up"))
        elif not self._tags.is_closing(key):
            self._tags.closed(peer, frame.request_id, frame.generation)

    def _settle_writes(self) -> int:
        num_settled, failed = self._outbox.settle()
        for key in failed:
            if (shipment := self._open.get(key)) is not None:
                shipment.fail(TransferError(f"a write to {shipment.ticket.decode_worker} failed"))
        return num_settled

    def _post_one(self, shipment: Shipment, now: float) -> int:
        """Posts at most one chunk, so that transfers take turns; none before the transfer's time has come."""
        if not self.slots.num_free or not shipment.has_due:
            return 0
        pacer = shipment.pacer
        if pacer is not None and not pacer.may_post(now, *self._outbox.in_flight(shipment.key)):
            return 0
        if (due := shipment.next_due()) is None:
            return 0
        try:
            self._post(shipment, due, now)
        except TransferError as error:
            shipment.fail(error)
        except Exception as error:
            # One chunk that cannot be packed must not end the thread that ships everybody's.
            log.exception("request %s chunk %d could not be sent", shipment.ticket.request_id, due.chunk)
            shipment.fail(TransferError(f"chunk {due.chunk} could not be sent: {error}"))
        shipment.moved_at = now
        return 1

    def _post(self, shipment: Shipment, due: ChunkDue, now: float) -> None:
        ticket = shipment.ticket
        is_paced = shipment.pacer is not None and shipment.pacer.is_paced(now)

        def fill(slot: memoryview) -> tuple[int, bytes]:
            size = self._packer.pack(ticket, due.chunk, shipment.block_ids, slot, shipment.importance)
            return size, Frame(
                FrameKind.CHUNK, ticket.request_id, ticket.generation, due.chunk, due.slot, size
            ).to_bytes()

        to = Destination(shipment.key, ticket.decode_worker, due.slot, is_paced)
        shipment.sent(due, self._outbox.send(to, fill), now)

    def _keep_or_end(self, shipment: Shipment, now: float) -> None:
        if shipment.is_complete:
            self._end(shipment, None, now)
            return
        ticket = shipment.ticket
        if shipment.is_waiting_for_peer and now - shipment.moved_at > shipment.stall_s:
            shipment.fail(TransferError(f"{ticket.decode_worker} took no chunk for {shipment.stall_s:g} s"))
        if shipment.error is not None:
            self._tags.close_when_quiet(shipment.key, ticket)
            self._end(shipment, shipment.error, now)
            return
        shipment.report(now)
        if now >= shipment.renew_at:
            shipment.renew_at = now + ticket.lease_s / 3
            self._tags.renew(ticket)

    def _end(self, shipment: Shipment, error: KvferryError | None, now: float) -> None:
        del self._open[shipment.key]
        self._spent.add(shipment.key)
        if error is None and shipment.num_hidden_bytes is not None:
            self.hidden = self.hidden.plus(shipment.num_hidden_bytes, shipment.num_acknowledged_bytes)
        self._ended.append(ShipmentEnded(shipment.ticket, error, shipment.num_bytes))
        shipment.report(now, is_ended=True)
        self.on_ended()

    def _connect(self, peer: PeerAddress) -> None:
        for known in [one for one in self._peers if one.name == peer.worker.name and one != peer.worker]:
            self._forget(known)
        self._transport.connect(peer)
        self._peers.add(peer.worker)

    def _forget(self, worker: WorkerId) -> None:
        self._peers.discard(worker)
        self._transport.disconnect(worker)
        self._outbox.forget(worker)
        for shipment in list(self._open.values()):
            if shipment.ticket.decode_worker == worker:
                shipment.fail(WorkerUnavailable(f"{worker} is gone"))
