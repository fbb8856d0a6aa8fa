"""Planned transfers between one P and one D over a wire with a rate, with a log of what was posted and reported when."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.ids import new_request_id
from protocol.pace import Pace, TransferPlan, TransferProgress
from protocol.ticket import Ticket
from tests.transfer.ferry import CHUNK_TOKENS, Ferry, FerryOptions
from transfer.frames import Frame, FrameKind
from transfer.landing_contract import LandingConfig, LandingRequest
from transfer.shipping_contract import ShippingConfig
from transfer.transport import WriteRequest

LINK = 1_000_000.0
"""What the wire carries, in bytes a second: more than 250 chunks."""
LAPSE_S = 5.0


def shared(allowed: float, reserved: float = 0.0) -> Pace:
    """A pace that holds."""
    return Pace(reserved, allowed, is_shared=True)


def alone(allowed: float = LINK) -> Pace:
    """The pace of a transfer that has its ports for itself."""
    return Pace(0.0, allowed, is_shared=False)


@dataclass(frozen=True, slots=True)
class Posted:
    """One chunk that went out."""

    at: float
    generation: int
    num_bytes: int


class PacedFerry(Ferry):
    """Chunks of zeros, as many as a test likes: no ticket lands in blocks."""

    def __init__(self, window_slots: int = 16, wire_bytes_per_second: float = LINK) -> None:
        options = FerryOptions(
            num_landing_slots=3 * window_slots,
            num_outbox_slots=3 * window_slots,
            landing=LandingConfig(window_slots=window_slots),
            shipping=ShippingConfig(pace_lapse_s=LAPSE_S),
            wire_bytes_per_second=wire_bytes_per_second,
        )
        super().__init__(options)
        self.posts: list[Posted] = []
        self.reports: list[tuple[float, TransferProgress]] = []
        self.fabric.faults.fail_write(when=self._note)

    def plan(self, num_chunks: int, pace: Pace | None, request_id: str | None = None) -> Ticket:
        """A transfer of which everything is computed, of a request of its own unless one is named."""
        ticket = self.open(num_chunks, pace, request_id)
        self.sender.computed(ticket, ticket.num_tokens, ())
        return ticket

    def open(self, num_chunks: int, pace: Pace | None, request_id: str | None = None) -> Ticket:
        """A transfer of which nothing is computed yet."""
        num_tokens = num_chunks * CHUNK_TOKENS
        request = LandingRequest(request_id or new_request_id(), self.sender.worker, 0, num_tokens, ())
        ticket = self.receiver.reserve(request, self.clock.now)
        plan = None if pace is None else TransferPlan(pace, LINK)
        self.sender.open(ticket, self.clock.now, plan, lambda one: self.reports.append((self.clock.now, one)))
        return ticket

    def set_pace(self, ticket: Ticket, pace: Pace) -> None:
        """An order of now."""
        self.sender.set_pace(ticket.request_id, pace, self.clock.now)

    def go_on(self, seconds: float, every: float = 0.001) -> None:
        """Pumps both sides for a while of the clock's time."""
        for _ in range(round(seconds / every)):
            self.turn(every)

    def posted(self, ticket: Ticket, begin: float = 0.0, end: float = float("inf")) -> int:
        """Bytes of a transfer that were posted within a stretch of time."""
        return sum(one.num_bytes for one in self.posts if one.generation == ticket.generation and begin <= one.at < end)

    def _note(self, request: WriteRequest) -> bool:
        frame = Frame.from_bytes(request.tag)
        if frame.kind is FrameKind.CHUNK:
            self.posts.append(Posted(self.clock.now, frame.generation, request.num_bytes))
        return False
