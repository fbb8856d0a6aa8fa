"""A sender and a receiver under random work and faults, beside a model of who may write what."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.errors import Cancelled, OutOfSlots
from protocol.ids import new_request_id
from protocol.pace import Pace, TransferPlan, TransferProgress
from protocol.ticket import Ticket
from tests.transfer.ferry import NUM_BLOCKS, Ferry, FerryOptions, layout, rows
from transfer.frames import Frame
from transfer.landing_contract import LandingConfig, LandingEnded, LandingRequest
from transfer.local_faults import Faults
from transfer.shipping_contract import ShippingConfig

LEASE_S, STALL_S, REVOKE_AGAIN_S, PACE_LAPSE_S = 3.0, 10.0, 1.0, 4.0
PACES = st.builds(lambda allowed, is_shared: Pace(0.0, allowed, is_shared), st.floats(0.0, 1e5), st.booleans())
FAULTS = ("corrupt_write", "drop_write", "drop_tag", "fail_write", "duplicate_tag")
TAG_FAULTS = ("drop_notification", "duplicate_notification")


@dataclass(eq=False, slots=True)
class Parcel:
    """One ticket, and what must come out of it."""

    ticket: Ticket
    target_blocks: tuple[int, ...]
    source_blocks: tuple[int, ...]
    content: torch.Tensor
    num_computed: int = 0
    is_opened: bool = False
    num_landing_ends: int = 0
    num_shipment_ends: int = 0
    has_landed: bool = False
    is_planned: bool = False
    reports: list[TransferProgress] = field(default_factory=list)


class FerryMachine(RuleBasedStateMachine):
    """Blocks are lent to tickets as workers do, taken back when a side says that a ticket has ended, and overwritten then."""

    @initialize(num_landing=st.integers(1, 5), num_outbox=st.integers(1, 3), window=st.integers(1, 3))
    def begin(self, num_landing: int, num_outbox: int, window: int) -> None:
        landing = LandingConfig(window, LEASE_S, REVOKE_AGAIN_S)
        shipping = ShippingConfig(STALL_S, PACE_LAPSE_S)
        self.ferry = Ferry(FerryOptions(num_landing, num_outbox, landing=landing, shipping=shipping))
        self.parcels: list[Parcel] = []
        self.free_targets = list(range(NUM_BLOCKS))
        self.free_sources = list(range(NUM_BLOCKS))
        self.ashore = self.ferry.target.clone()  # what D's pool must be, block for block, wherever nothing may land
        self.noise = torch.Generator().manual_seed(5)

    @rule(num_tokens=st.integers(1, 90))
    def reserve(self, num_tokens: int) -> None:
        num_blocks = layout().num_blocks_for(num_tokens)
        if num_blocks > min(len(self.free_targets), len(self.free_sources)):
            return
        targets, sources = tuple(self.free_targets[-num_blocks:]), tuple(self.free_sources[-num_blocks:])
        request = LandingRequest(new_request_id(), self.ferry.sender.worker, 0, num_tokens, targets)
        try:
            ticket = self.ferry.receiver.reserve(request, self.ferry.clock.now)
        except OutOfSlots:
            return
        del self.free_targets[-num_blocks:]
        del self.free_sources[-num_blocks:]
        content = rows(self.ferry.source, sources, num_tokens).clone()
        self.parcels.append(Parcel(ticket, targets, sources, content))

    @precondition(lambda self: self.parcels)
    @rule(data=st.data(), num_tokens=st.integers(1, 90), pace=st.none() | PACES)
    def compute(self, data: st.DataObject, num_tokens: int, pace: Pace | None) -> None:
        parcel = data.draw(st.sampled_from(self.parcels))
        if parcel.num_shipment_ends:
            return
        if not parcel.is_opened:
            parcel.is_opened, parcel.is_planned = True, pace is not None
            plan = None if pace is None else TransferPlan(pace, 1e5)
            self.ferry.sender.open(parcel.ticket, self.ferry.clock.now, plan, parcel.reports.append)
        parcel.num_computed = min(parcel.ticket.num_tokens, parcel.num_computed + num_tokens)
        self.ferry.sender.computed(parcel.ticket, parcel.num_computed, parcel.source_blocks)

    @precondition(lambda self: self.parcels)
    @rule(data=st.data(), pace=PACES)
    def order(self, data: st.DataObject, pace: Pace) -> None:
        request_id = data.draw(st.sampled_from(self.parcels)).ticket.request_id
        self.ferry.sender.set_pace(request_id, pace, self.ferry.clock.now)

    @precondition(lambda self: self.parcels)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.ferry.sender.abort(data.draw(st.sampled_from(self.parcels)).ticket, Cancelled("P gives up"))

    @precondition(lambda self: self.parcels)
    @rule(data=st.data())
    def revoke(self, data: st.DataObject) -> None:
        self.ferry.receiver.revoke(data.draw(st.sampled_from(self.parcels)).ticket.generation)

    @rule(seconds=st.sampled_from([0.0, 0.0, 0.001, 0.9, 2.0]), side=st.sampled_from(["both", "sender", "receiver"]))
    def pump(self, seconds: float, side: str) -> None:
        self.ferry.clock.advance(seconds)
        if side != "receiver":
            self.ferry.sender.pump(self.ferry.clock.now)
        if side != "sender":
            self.ferry.receiver.pump(self.ferry.clock.now)
        self.settle()

    @rule(fault=st.sampled_from(FAULTS), num=st.integers(1, 3))
    def break_writes(self, fault: str, num: int) -> None:
        getattr(self.ferry.fabric.faults, fault)(num)

    @rule(fault=st.sampled_from(TAG_FAULTS), num=st.integers(1, 3))
    def break_tags(self, fault: str, num: int) -> None:
        getattr(self.ferry.fabric.faults, fault)(num)

    @rule()
    def hold(self) -> None:
        self.ferry.fabric.faults.hold()

    @rule()
    def release(self) -> None:
        self.ferry.fabric.faults.release()

    @invariant()
    def no_write_goes_to_a_slot_of_others(self) -> None:
        if not hasattr(self, "ferry"):
            return
        slots = self.ferry.receiver.slots
        owners = {slot: owner for held in (slots._lent, slots._quarantined) for owner in held for slot in held[owner]}
        for _, write in self.ferry.fabric._in_flight:
            assert owners.get(write.request.remote_slot) == Frame.from_bytes(write.request.tag).generation

    def settle(self) -> None:
        """Takes the ends that both sides report, checks them and gives the blocks to others."""
        for landed in self.ferry.receiver.take_ended():
            self.settle_landing(landed)
        for shipped in self.ferry.sender.take_ended():
            parcel = next(one for one in self.parcels if one.ticket == shipped.ticket)
            parcel.num_shipment_ends += 1
            self.free_sources.extend(parcel.source_blocks)
            self.overwrite(self.ferry.source, parcel.source_blocks)

    def settle_landing(self, landed: LandingEnded) -> None:
        parcel = next(one for one in self.parcels if one.ticket == landed.ticket)
        parcel.num_landing_ends += 1
        if landed.error is None:
            parcel.has_landed = True
            assert torch.equal(rows(self.ferry.target, parcel.target_blocks, parcel.ticket.num_tokens), parcel.content)
        self.free_targets.extend(parcel.target_blocks)
        self.overwrite(self.ferry.target, parcel.target_blocks)
        self.ashore[:, :, list(parcel.target_blocks)] = self.ferry.target[:, :, list(parcel.target_blocks)]

    def overwrite(self, cache: torch.Tensor, block_ids: tuple[int, ...]) -> None:
        """What the next owner of the blocks writes there."""
        part = cache[:, :, list(block_ids)]
        cache[:, :, list(block_ids)] = torch.randn(part.shape, generator=self.noise)

    def teardown(self) -> None:
        """Faults cease, everything is pumped: all tickets have ended once, all slots are free, no block was touched late."""
        if not hasattr(self, "ferry"):
            return
        self.ferry.fabric.faults = Faults()
        for _ in range(int(3 * (LEASE_S + STALL_S)) + 10):
            for parcel in self.parcels:
                if parcel.is_opened and not parcel.num_shipment_ends:
                    self.ferry.sender.computed(parcel.ticket, parcel.ticket.num_tokens, parcel.source_blocks)
            for _ in range(8):
                self.pump(0.0, "both")
            self.pump(0.5, "both")
        for parcel in self.parcels:
            assert parcel.num_landing_ends == 1
            assert parcel.num_shipment_ends == int(parcel.is_opened)
            assert [one.is_ended for one in parcel.reports].count(True) == int(parcel.is_planned)
            assert not parcel.reports or parcel.reports[-1].is_ended
        assert torch.equal(self.ferry.target, self.ashore)
        self.ferry.check_quiet()


TestFerryMachine = FerryMachine.TestCase
TestFerryMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
