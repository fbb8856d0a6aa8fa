"""A sender and a receiver over the local transport with the real codec and small pools, pumped by hand under a fake clock."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from protocol.ids import WorkerId, new_request_id
from protocol.layout import KvDtype, KvLayout
from protocol.ticket import Ticket
from tests.support.clock import FakeClock
from transfer.arena import PAGE_BYTES, Arena
from transfer.codec.pool_codec import PoolCodec
from transfer.landing import Receiver
from transfer.landing_contract import LandingConfig, LandingEnded, LandingRequest
from transfer.local import LocalFabric, LocalTransport
from transfer.local_wire import RatedWire
from transfer.shipping import Sender
from transfer.shipping_contract import ShipmentEnded, ShippingConfig
from transfer.transport import Arenas

BLOCK_SIZE = 4
NUM_BLOCKS = 64
CHUNK_TOKENS = 28  # whole blocks in one page: 28 tokens of 2 * 2 * 8 float32 are 3,584 bytes
MAX_TURNS = 2000


def layout(**fields: object) -> KvLayout:
    """A small cache's layout; `fields` replace its own."""
    small: dict[str, object] = {"model_fingerprint": "tiny", "num_layers": 2, "num_kv_heads": 1, "head_dim": 8}
    return KvLayout(**{**small, "dtype": KvDtype.FLOAT32, "block_size": BLOCK_SIZE, **fields})  # type: ignore[arg-type]


def pool(shape_of: KvLayout, seed: int) -> torch.Tensor:
    """A pool of `NUM_BLOCKS` blocks full of noise."""
    shape = (shape_of.num_layers, 2, NUM_BLOCKS, shape_of.block_size, shape_of.num_kv_heads, shape_of.head_dim)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True, slots=True)
class FerryOptions:
    """What a test may vary."""

    num_landing_slots: int = 8
    num_outbox_slots: int = 4
    slot_bytes: int = PAGE_BYTES
    landing: LandingConfig = field(default_factory=LandingConfig)
    shipping: ShippingConfig = field(default_factory=ShippingConfig)
    wire_bytes_per_second: float | None = None


@dataclass(eq=False, slots=True)
class Ending:
    """What both sides have said about one ticket."""

    landings: list[LandingEnded] = field(default_factory=list)
    shipments: list[ShipmentEnded] = field(default_factory=list)


class Ferry:
    """One P and one D, connected. `fabric.faults` orders faults on the wire between them."""

    def __init__(self, options: FerryOptions | None = None, *, is_connected: bool = True) -> None:
        self.options = options or FerryOptions()
        self.clock = FakeClock()
        rate = self.options.wire_bytes_per_second
        self.fabric = LocalFabric(None if rate is None else RatedWire(rate, self.clock))
        self.source, self.target = pool(layout(), 1), pool(layout(), 2)
        self.sender = self.new_sender()
        self.receiver = self.new_receiver()
        self.endings: dict[int, Ending] = {}
        if is_connected:
            self.connect()

    def new_sender(self, name: str = "prefill-0") -> Sender:
        """A prefill worker's side on this fabric."""
        worker, arena = WorkerId.fresh(name), Arena(self.options.num_outbox_slots, self.options.slot_bytes)
        transport = LocalTransport(worker, Arenas(landing=None, outbox=arena), self.fabric)
        sender = Sender(worker, transport, arena, PoolCodec(self.source, layout()), self.options.shipping)
        sender.clock = self.clock
        return sender

    def new_receiver(self, name: str = "decode-0") -> Receiver:
        """A decode worker's side on this fabric."""
        worker, arena = WorkerId.fresh(name), Arena(self.options.num_landing_slots, self.options.slot_bytes)
        transport = LocalTransport(worker, Arenas(landing=arena, outbox=None), self.fabric)
        return Receiver(worker, transport, arena, PoolCodec(self.target, layout()), self.options.landing)

    def connect(self) -> None:
        """Shakes hands both ways."""
        accepted = self.receiver.connect(self.sender.address(), layout())
        connected = self.sender.connect(self.receiver.address())
        self.turn()
        accepted.result(0)
        connected.result(0)

    def reserve(self, num_tokens: int, block_ids: tuple[int, ...] | None = None) -> Ticket:
        """A ticket for `num_tokens` tokens into the target's `block_ids` (from block 0 on by default)."""
        if block_ids is None:
            block_ids = tuple(range(layout().num_blocks_for(num_tokens)))
        request = LandingRequest(new_request_id(), self.sender.worker, 0, num_tokens, block_ids)
        return self.receiver.reserve(request, self.clock.now)

    def ship(self, ticket: Ticket, block_ids: tuple[int, ...] | None = None) -> None:
        """Opens a ticket and offers all of it, out of the source's `block_ids` (from block 0 on by default)."""
        self.sender.open(ticket, self.clock.now)
        self.sender.computed(ticket, ticket.num_tokens, block_ids or self.blocks_of(ticket))

    def blocks_of(self, ticket: Ticket) -> tuple[int, ...]:
        """As many blocks as the ticket's tokens need, from 0 on."""
        return tuple(range(layout().num_blocks_for(ticket.num_tokens)))

    def turn(self, seconds: float = 0.001) -> bool:
        """Pumps both once; true when one of them did something or something ended."""
        self.clock.advance(seconds)
        is_busy = self.sender.pump(self.clock.now)
        is_busy |= self.receiver.pump(self.clock.now)
        for landed in self.receiver.take_ended():
            self.endings.setdefault(landed.ticket.generation, Ending()).landings.append(landed)
            is_busy = True
        for shipped in self.sender.take_ended():
            self.endings.setdefault(shipped.ticket.generation, Ending()).shipments.append(shipped)
            is_busy = True
        return is_busy

    def run(self, seconds: float = 0.0) -> None:
        """Pumps for a while of fake time, and on until both are at rest."""
        until = self.clock.now + seconds
        for _ in range(MAX_TURNS):
            pause = min(0.1, seconds) or 0.001
            if not self.turn(pause) and self.clock.now >= until:
                return
        raise RuntimeError("the ferry does not come to rest")

    def landed(self, ticket: Ticket) -> LandingEnded:
        """The one end of a ticket at the receiver."""
        (ended,) = self.endings[ticket.generation].landings
        return ended

    def shipped(self, ticket: Ticket) -> ShipmentEnded:
        """The one end of a ticket at the sender."""
        (ended,) = self.endings[ticket.generation].shipments
        return ended

    def is_ended(self, ticket: Ticket) -> bool:
        """Whether either side has ended it."""
        return ticket.generation in self.endings

    def check_quiet(self) -> None:
        """Raises `AssertionError` unless nothing is open and every slot on both sides is free."""
        assert not self.receiver.is_active
        assert not self.sender.is_active
        for slots in (self.receiver.slots, self.sender.slots):
            slots.check_integrity()
            assert slots.num_free == slots.num_slots


def rows(cache: torch.Tensor, block_ids: tuple[int, ...], num_tokens: int) -> torch.Tensor:
    """The KV of a sequence in the order of its tokens: `[layer, 2, token, head, dim]`."""
    taken = cache[:, :, list(block_ids)]
    return taken.flatten(2, 3)[:, :, :num_tokens]


LEASE_S = 9.0
STALL_S = 30.0


def patient_ferry(num_landing_slots: int = 8, num_outbox_slots: int = 4) -> Ferry:
    """A pair whose leases last `LEASE_S` and whose patience `STALL_S`."""
    landing = LandingConfig(window_slots=4, lease_s=LEASE_S, revoke_again_s=1.0)
    return Ferry(FerryOptions(num_landing_slots, num_outbox_slots, landing=landing, shipping=ShippingConfig(STALL_S)))


def check_landed(ferry: Ferry, ticket: Ticket) -> None:
    """Both sides ended the ticket once, without error, and the KV is the source's."""
    assert ferry.landed(ticket).error is None
    assert ferry.shipped(ticket).error is None
    blocks = ferry.blocks_of(ticket)
    assert torch.equal(rows(ferry.target, blocks, ticket.num_tokens), rows(ferry.source, blocks, ticket.num_tokens))
