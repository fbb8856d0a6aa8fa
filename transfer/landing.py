"""The decode worker's side of a transfer: grants tickets, verifies what lands, hands credits back, fences what is stale.

Knows slots, chunks and block ids; the bytes' meaning is the codec's, and whether a request still wants its KV is the
worker's. Every granted ticket ends in exactly one `LandingEnded`; before it the blocks belong to the transfer, after it no
byte is written to them. Slots may stay in quarantine longer: until the writer says CLOSED or its incarnation is gone.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

from protocol.errors import (
    BadChunk,
    BadRequest,
    Cancelled,
    KvferryError,
    LeaseExpired,
    NotConnected,
    StaleTicket,
    TransferError,
    WorkerUnavailable,
)
from protocol.ids import WorkerId
from protocol.layout import KvDtype, KvLayout, check_compatible, wire_dtype
from protocol.ticket import TAIL_STEP, Ticket
from protocol.wire_rule import WireRule
from transfer.arena import Arena
from transfer.commands import CommandQueue
from transfer.frames import Frame, FrameKind
from transfer.landing_contract import LandingConfig, LandingEnded, LandingRequest, Unpacker
from transfer.landing_records import ClosingLanding, OpenLanding
from transfer.slots import SlotPool
from transfer.transport import PeerAddress, Transport

log = logging.getLogger(__name__)


class Receiver:
    """`reserve`, `revoke`, `take_ended`, `connect` and `forget` from any thread; `pump` and `close` from the transport's."""

    def __init__(
        self,
        worker: WorkerId,
        transport: Transport[Any],
        arena: Arena,
        unpacker: Unpacker,
        config: LandingConfig | None = None,
    ) -> None:
        self.worker = worker
        self.commands = CommandQueue()
        self.config = config or LandingConfig()
        self.slots = SlotPool(arena.num_slots)
        self.on_ended: Callable[[], None] = lambda: None
        self.num_stale_frames = 0
        self._transport = transport
        self._arena = arena
        self._unpacker = unpacker
        # Guards slots, _peers and _open against `reserve`, which runs on other threads: no ticket outlives a `forget`.
        self._lock = threading.Lock()
        self._next_generation = 1
        self._peers: dict[WorkerId, KvDtype] = {}  # and what crosses from each
        self._open: dict[int, OpenLanding] = {}
        self._closing: dict[int, ClosingLanding] = {}
        self._ended: deque[LandingEnded] = deque()

    @property
    def is_active(self) -> bool:
        """Whether a ticket is open or a slot in quarantine."""
        return bool(self._open or self._closing)

    def address(self) -> PeerAddress:
        """How peers reach this side."""
        return self._transport.address()

    def bytes_by_tier(self) -> Mapping[str, int]:
        """Bytes that have crossed so far, by their precision."""
        return self._unpacker.bytes_by_tier()

    def reserve(self, request: LandingRequest, now: float) -> Ticket:
        """Grants a ticket. Raises, changing nothing, `OutOfSlots` when no slot is free, `NotConnected` for a stranger."""
        if not 0 <= request.first_token < request.num_tokens:
            raise BadRequest(f"tokens {request.first_token} to {request.num_tokens} are nothing that could land")
        with self._lock:
            rule = request.rule or self.config.rule
            chunk_tokens = self.chunk_tokens_from(request.prefill_worker, rule)
            generation = self._next_generation
            ticket = Ticket(
                request_id=request.request_id,
                prefill_worker=request.prefill_worker,
                decode_worker=self.worker,
                generation=generation,
                slots=(),
                slot_bytes=self._arena.slot_bytes,
                first_token=request.first_token,
                num_tokens=request.num_tokens,
                chunk_tokens=chunk_tokens,
                dtype=self._peers[request.prefill_worker],
                lease_s=self.config.lease_s,
                rule=rule,
                # A last chunk has up to `TAIL_STEP` - 1 tokens more, which must fit its slot too.
                tail_tokens=max(0, min(self.config.tail_tokens, chunk_tokens - TAIL_STEP + 1))
                if rule.is_lossless
                else 0,
            )
            slots = self.slots.lend(generation, min(ticket.num_chunks, self.config.window_slots))
            ticket = replace(ticket, slots=slots)
            self._next_generation += 1
            self._open[generation] = OpenLanding(ticket, request.block_ids, now + self.config.lease_s, now)
        self.commands.bell.set()
        return ticket

    def revoke(self, generation: int, error: KvferryError | None = None) -> None:
        """Gives a ticket up, if it is still open; its `LandingEnded` follows, with `error` or as `Cancelled`."""
        reason = error or Cancelled("the decode worker gave the transfer up")
        self.commands.post(lambda: self._revoke(generation, reason))

    def last_landed_at(self, generation: int) -> float | None:
        """When a chunk of an open ticket last landed, or else when it was granted; None when it is not open."""
        landing = self._open.get(generation)
        return landing.landed_at if landing is not None else None

    def take_ended(self) -> list[LandingEnded]:
        """Tickets that have ended since the last call."""
        return [self._ended.popleft() for _ in range(len(self._ended))]

    def connect(self, peer: PeerAddress, layout: KvLayout) -> Future[None]:
        """Makes a prefill worker able to write here, and forgets its earlier incarnations.

        Raises `LayoutMismatch` at once, naming the field, when its KV could not be used here.
        """
        check_compatible(layout, self._unpacker.layout)
        return self.commands.submit(lambda: self._connect(peer, layout))

    def dtype_from(self, worker: WorkerId) -> KvDtype:
        """The element type in which this prefill worker's KV crosses. Raises `NotConnected` when it is a stranger."""
        if (dtype := self._peers.get(worker)) is None:
            raise NotConnected(f"{worker} is not connected to {self.worker}")
        return dtype

    def chunk_tokens_from(self, worker: WorkerId, rule: WireRule | None = None) -> int:
        """Tokens in a chunk of this prefill worker, by the receiver's own rule if no other is given. Raises `NotConnected`
        when it is a stranger.
        """
        dtype = self.dtype_from(worker)
        rule = rule or self.config.rule
        fitting = self._unpacker.chunk_tokens(dtype, self._arena.slot_bytes, rule)
        block_size = self._unpacker.layout.block_size
        wanted = max(block_size, self.config.max_chunk_tokens // block_size * block_size)
        return min(fitting, wanted) if rule.is_lossless else fitting

    def forget(self, worker: WorkerId) -> Future[None]:
        """Ends all that a worker had open. Call it only when that incarnation is gone and cannot write any more."""
        return self.commands.submit(lambda: self._forget(worker))

    def pump(self, now: float) -> bool:
        """Runs commands, takes what has arrived, and ends what has expired."""
        num_done = self.commands.run_due()
        for peer, raw in self._transport.notifications():
            num_done += 1
            try:
                self._take(peer, Frame.from_bytes(raw), now)
            except BadChunk as error:
                log.warning("a tag from %s is not ours: %s", peer, error)
                self.num_stale_frames += 1
        self._expire(now)
        return num_done > 0

    def close(self) -> None:
        """Ends the transport; what is open ends with it."""
        for generation in list(self._open):
            self._end(generation, Cancelled("the worker stops"))
        self.commands.refuse(WorkerUnavailable(f"{self.worker} has ended its transfers"))
        self._transport.close()

    def _take(self, peer: WorkerId, frame: Frame, now: float) -> None:
        if frame.kind is FrameKind.CLOSED and frame.generation in self._closing:
            self._release(frame, peer)
            return
        landing = self._open.get(frame.generation)
        is_ours = landing is not None and landing.ticket.request_id == frame.request_id
        if landing is None or not is_ours or landing.ticket.prefill_worker != peer:
            self.num_stale_frames += 1
        elif frame.kind is FrameKind.CHUNK:
            self._land(landing, frame, now)
        elif frame.kind is FrameKind.RENEW:
            landing.expires_at = now + self.config.lease_s
        elif frame.kind is FrameKind.CLOSED:
            self._end(frame.generation, TransferError(f"{peer} gave the transfer up"))
        else:
            self.num_stale_frames += 1

    def _land(self, landing: OpenLanding, frame: Frame, now: float) -> None:
        ticket = landing.ticket
        if frame.chunk in landing.landed or frame.chunk >= ticket.num_chunks or frame.slot not in ticket.slots:
            self.num_stale_frames += 1
            return
        size = min(frame.num_bytes, self._arena.slot_bytes)
        try:
            self._unpacker.unpack(ticket, frame.chunk, landing.block_ids, self._arena.slot(frame.slot)[:size])
        except (BadChunk, StaleTicket) as error:
            self._reject(landing, frame, error)
            return
        except Exception as error:
            # One chunk that cannot be unpacked must not end the thread that lands everybody's.
            log.exception("request %s chunk %d could not be unpacked", ticket.request_id, frame.chunk)
            self._give_up(ticket.generation, TransferError(f"chunk {frame.chunk} could not be unpacked: {error}"))
            return
        landing.landed.add(frame.chunk)
        landing.num_bytes += size
        landing.expires_at, landing.landed_at = now + self.config.lease_s, now
        self._tell(ticket, FrameKind.CREDIT, frame.chunk, frame.slot)
        if len(landing.landed) == ticket.num_chunks:
            self._end(ticket.generation, None)

    def _reject(self, landing: OpenLanding, frame: Frame, error: KvferryError) -> None:
        ticket = landing.ticket
        log.warning("request %s chunk %d: %s", ticket.request_id, frame.chunk, error)
        if frame.chunk in landing.rejected:
            self._give_up(ticket.generation, error)
            return
        landing.rejected.add(frame.chunk)
        self._tell(ticket, FrameKind.REJECT, frame.chunk, frame.slot)

    def _revoke(self, generation: int, error: KvferryError) -> None:
        if generation in self._open:
            self._give_up(generation, error)

    def _give_up(self, generation: int, error: KvferryError) -> None:
        """Ends a transfer whose writer may still be writing: its slots go to quarantine until it says CLOSED."""
        landing = self._open.pop(generation)
        with self._lock:
            self.slots.quarantine(generation)
        self._closing[generation] = ClosingLanding(landing.ticket, ask_again_at=0.0)
        self._report(landing, error)

    def _end(self, generation: int, error: KvferryError | None) -> None:
        """Ends a transfer that nobody writes any more."""
        landing = self._open.pop(generation)
        with self._lock:
            self.slots.free(generation)
        self._report(landing, error)

    def _report(self, landing: OpenLanding, error: KvferryError | None) -> None:
        self._ended.append(LandingEnded(landing.ticket, error, landing.num_bytes))
        self.on_ended()

    def _release(self, frame: Frame, peer: WorkerId) -> None:
        ticket = self._closing[frame.generation].ticket
        if ticket.request_id != frame.request_id or ticket.prefill_worker != peer:
            self.num_stale_frames += 1
            return
        del self._closing[frame.generation]
        with self._lock:
            self.slots.free(frame.generation)

    def _connect(self, peer: PeerAddress, layout: KvLayout) -> None:
        for known in [one for one in self._peers if one.name == peer.worker.name and one != peer.worker]:
            self._forget(known)
        self._transport.connect(peer)
        with self._lock:
            self._peers[peer.worker] = wire_dtype(layout.dtype, self._unpacker.layout.dtype)

    def _forget(self, worker: WorkerId) -> None:
        with self._lock:
            self._peers.pop(worker, None)
        self._transport.disconnect(worker)
        for generation, landing in list(self._open.items()):
            if landing.ticket.prefill_worker == worker:
                self._end(generation, WorkerUnavailable(f"{worker} is gone"))
        for generation, closing in list(self._closing.items()):
            if closing.ticket.prefill_worker == worker:
                del self._closing[generation]
                with self._lock:
                    self.slots.free(generation)

    def _expire(self, now: float) -> None:
        for generation, landing in list(self._open.items()):
            if now > landing.expires_at:
                self._give_up(generation, LeaseExpired(f"nothing came within the lease of {self.config.lease_s} s"))
        for closing in self._closing.values():
            if now >= closing.ask_again_at:
                closing.ask_again_at = now + self.config.revoke_again_s
                self._tell(closing.ticket, FrameKind.REVOKE)

    def _tell(self, ticket: Ticket, kind: FrameKind, chunk: int = 0, slot: int = 0) -> None:
        frame = Frame(kind, ticket.request_id, ticket.generation, chunk, slot)
        try:
            self._transport.notify(ticket.prefill_worker, frame.to_bytes())
        except TransferError as error:
            # Its lease or the control plane's word that it is gone will end the transfer.
            log.warning("%s could not be told %s: %s", ticket.prefill_worker, kind.name, error)
