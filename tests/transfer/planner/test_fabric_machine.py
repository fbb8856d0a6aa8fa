"""Both fabrics under random demands, delays, losses and dead routers, beside a plain model of what may be held."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from protocol.errors import StaleProposal, UnknownLease
from tests.transfer.planner.demands import egress, ingress
from transfer.planner.circuit import CircuitFabric
from transfer.planner.circuit_search import CircuitRules
from transfer.planner.lease import Lease, Pair, Proposal, TransferDemand, Window
from transfer.planner.ledger import LeaseTerms, Ledger
from transfer.planner.packet import PacketFabric

LEASE_S = 6.0
ROUNDING_S = 1e-6
MAX_STEPS = 400
EGRESS = {name: egress(name, rate) for name, rate in (("p0", 1000), ("p1", 700), ("p2", 1500))}
INGRESS = {name: ingress(name, rate) for name, rate in (("d0", 1000), ("d1", 400))}
ways = st.tuples(st.sampled_from(sorted(EGRESS)), st.sampled_from(sorted(INGRESS)))
owners = st.sampled_from(["r0", "r1"])
any_lease = st.integers(0, 2**16)
clocks = st.sampled_from([0.0, 1.8e9])  # since a start, and since 1970: with far coarser fractions of a second


def pair_of(way: tuple[str, str]) -> Pair:
    """The way between two workers; the one from p2 is narrower than its ports."""
    return Pair(EGRESS[way[0]], INGRESS[way[1]], 300 if way[0] == "p2" else 5000)


class _FabricMachine(RuleBasedStateMachine):
    """The rules that hold for any fabric. Subclasses add how it is made and what it must never do."""

    fabric: PacketFabric | CircuitFabric

    def adopt(self, fabric: PacketFabric | CircuitFabric, now: float) -> None:
        self.fabric = fabric
        self.now = now
        self.sent: dict[int, float] = {}  # bytes that a sender which keeps to its windows has moved
        self.held: set[int] = set()
        self.demands: dict[int, TransferDemand] = {}
        self.offer: Proposal | None = None

    @rule(way=ways, num_bytes=st.integers(1, 5000), rate=st.integers(50, 3000), wait_s=st.integers(0, 6), owner=owners)
    def propose(self, way: tuple[str, str], num_bytes: int, rate: int, wait_s: int, owner: str) -> None:
        asked = TransferDemand("request", *way, num_bytes, rate, self.now + wait_s, owner)
        before = self.fabric
        self.offer = before.propose(asked, pair_of(way), self.now)
        assert self.offer == before.propose(asked, pair_of(way), self.now)
        assert sum(window.num_bytes for window in self.offer.windows) == num_bytes
        assert self.offer.ready >= self.now
        assert self.offer.predicted_end >= asked.produced_at - ROUNDING_S

    @rule(way=ways, num_bytes=st.integers(1, 5000), rate=st.integers(50, 3000), wait_s=st.integers(0, 6), owner=owners)
    def reserve(self, way: tuple[str, str], num_bytes: int, rate: int, wait_s: int, owner: str) -> None:
        asked = TransferDemand("request", *way, num_bytes, rate, self.now + wait_s, owner)
        before = self.fabric
        self.fabric, lease = before.commit(before.propose(asked, pair_of(way), self.now), self.now)
        self._note(lease)
        self.floors_stand(before, asked.num_bytes, self.now)

    @precondition(lambda self: self.offer is not None)
    @rule()
    def commit_an_older_offer(self) -> None:
        assert self.offer is not None
        try:
            self.fabric, lease = self.fabric.commit(self.offer, self.now)
        except StaleProposal:
            return
        self._note(lease)

    @rule(ticks=st.integers(1, 12), pace=st.sampled_from([0.0, 0.5, 1.0]))
    def advance(self, ticks: int, pace: float) -> None:
        """Time passes; senders move their windows' bytes, or fewer."""
        then = self.now + ticks / 4
        for lease in self.fabric.leases.values():
            moved = sum(each.room_bytes(self.now) - each.room_bytes(then) for each in lease.windows)
            self.sent[lease.lease_id] = min(lease.demand.num_bytes, self.sent[lease.lease_id] + pace * moved)
        self.now = then

    @precondition(lambda self: self.held)
    @rule(which=any_lease)
    def progress(self, which: int) -> None:
        lease_id, before = self._chosen(which), self.fabric
        self.fabric, lease = self.fabric.progress(lease_id, round(self.sent[lease_id]), self.now)
        if lease is not None:
            self.floors_stand(before, lease.remaining_bytes, self.now, lease_id)
        if lease is None:
            assert round(self.sent[lease_id]) == self._ended(lease_id).num_bytes
            return
        assert lease.windows[-1].end > self.now
        self.demands[lease_id] = lease.demand

    @precondition(lambda self: self.held)
    @rule(which=any_lease, shift_s=st.integers(-4, 8))
    def reschedule(self, which: int, shift_s: int) -> None:
        lease_id = self._chosen(which)
        start = self.fabric.leases[lease_id].demand.start + shift_s
        self.fabric, lease = self.fabric.reschedule(lease_id, start, self.now)
        assert lease.demand.start == start
        assert lease.windows[-1].end > self.now

    @precondition(lambda self: self.held)
    @rule(which=any_lease, left_s=st.sampled_from([0.25, 0.5]))
    def come_late(self, which: int, left_s: float) -> None:
        """A lease reports that nothing has moved, shortly before its end."""
        lease_id = self._chosen(which)
        self.now = max(self.now, self.fabric.leases[lease_id].predicted_end - left_s)
        self.progress(which)

    @precondition(lambda self: self.held)
    @rule(which=any_lease)
    def release(self, which: int) -> None:
        lease_id = self._chosen(which)
        self.fabric = self.fabric.release(lease_id, self.now)
        self._ended(lease_id)
        with pytest.raises(UnknownLease):
            self.fabric.progress(lease_id, 0, self.now)

    @rule(owner=owners)
    def renew_and_expire(self, owner: str) -> None:
        self.fabric = self.fabric.renew(owner, self.now)
        self.fabric, expired = self.fabric.expire(self.now)
        for lease in expired:
            assert lease.owner != owner
            self._ended(lease.lease_id)

    def floors_stand(
        self, before: PacketFabric | CircuitFabric, num_bytes: int, now: float, progressed: int = 0
    ) -> None:
        """What others hold now after one of `num_bytes` was planned: a shorter one what it held, a longer one its floor."""
        for lease_id, held in before.leases.items():
            had, has = held.bytes_per_second(now), self.fabric.leases[lease_id].bytes_per_second(now)
            floor = max(1, held.pair.max_bytes_per_second // 32)
            if lease_id != progressed:
                assert has >= (min(had, floor) if held.remaining_bytes > num_bytes else had)

    @invariant()
    def leases_are_those_that_are_held(self) -> None:
        assert set(self.fabric.leases) == self.held

    def finish(self) -> None:
        """Every lease makes progress and ends when its sender keeps to the plan; then nothing is left."""
        for _ in range(MAX_STEPS):
            if not self.held:
                break
            self.now = max(self.now, min(self.fabric.leases[each].predicted_end for each in self.held))
            for lease_id in sorted(self.held):
                self._send_to(lease_id, self.now)
        assert self.held == set()
        assert self._left_over() == {}

    def _send_to(self, lease_id: int, then: float) -> None:
        lease = self.fabric.leases[lease_id]
        arrived = lease.demand.num_bytes if lease.predicted_end <= then else lease.acknowledged_bytes
        self.fabric, left = self.fabric.progress(lease_id, arrived, then)
        if left is None:
            self._ended(lease_id)

    def _left_over(self) -> Mapping[Any, object]:
        raise NotImplementedError

    def _note(self, lease: Lease) -> None:
        self.held.add(lease.lease_id)
        self.sent[lease.lease_id] = 0.0
        self.demands[lease.lease_id] = lease.demand

    def _chosen(self, which: int) -> int:
        return sorted(self.held)[which % len(self.held)]

    def _ended(self, lease_id: int) -> TransferDemand:
        self.held.remove(lease_id)
        return self.demands.pop(lease_id)


class PacketMachine(_FabricMachine):
    """Links that share their rate."""

    fabric: PacketFabric

    @initialize(max_share=st.sampled_from([0.3, 0.5, 15 / 16, 1.0]), now=clocks)
    def begin(self, max_share: float, now: float) -> None:
        self.adopt(PacketFabric(Ledger(LeaseTerms(LEASE_S)), max_share), now)

    @invariant()
    def nothing_is_oversold(self) -> None:
        """At every instant from now on, on every port and every way, and the fabric's own sums are right."""
        rates: dict[tuple[str, ...], int] = {}
        windows: dict[tuple[str, ...], list[Window]] = {}
        for lease in self.fabric.leases.values():
            source, destination = lease.pair.names
            resources: tuple[tuple[tuple[str, ...], int], ...] = (
                (("egress", source), lease.pair.egress.bytes_per_second),
                (("ingress", destination), lease.pair.ingress.bytes_per_second),
                (("pair", source, destination), lease.pair.bytes_per_second),
            )
            for key, rate in resources:
                rates[key] = rate
                windows.setdefault(key, []).extend(lease.windows)
        for key, held in windows.items():
            for time in {self.now, *(each.start for each in held if each.start > self.now)}:
                sold = sum(each.bytes_per_second for each in held if each.start <= time < each.end)
                assert sold <= rates[key]
                if sold:
                    assert self.fabric.profiles[key].at(time) == sold

    def _left_over(self) -> Mapping[Any, object]:
        return self.fabric.profiles

    def teardown(self) -> None:
        self.finish()


class CircuitMachine(_FabricMachine):
    """One peer per port."""

    fabric: CircuitFabric

    @initialize(delay_s=st.sampled_from([0.0, 0.05, 1.0]), max_windows=st.integers(1, 3), now=clocks)
    def begin(self, delay_s: float, max_windows: int, now: float) -> None:
        rules = CircuitRules(delay_s, min_slice_bytes=20, max_windows=max_windows)
        self.adopt(CircuitFabric(rules, Ledger(LeaseTerms(LEASE_S))), now)

    @invariant()
    def a_port_has_one_peer_and_every_circuit_is_set_up(self) -> None:
        """Windows on a port never overlap; each begins with the delay or right behind one of the same pair."""
        ports: dict[tuple[str, str], list[tuple[Window, tuple[str, str]]]] = {}
        for lease in self.fabric.leases.values():
            assert len(lease.windows) <= self.fabric.rules.max_windows
            for window in lease.windows:
                assert window.start <= window.ready < window.end
                if window.end > self.now:
                    ports.setdefault(("egress", lease.pair.names[0]), []).append((window, lease.pair.names))
                    ports.setdefault(("ingress", lease.pair.names[1]), []).append((window, lease.pair.names))
        for key, booked in ports.items():
            booked.sort(key=lambda each: each[0].start)
            for (before, names), (window, others) in pairwise(booked):
                assert before.end <= window.start
                is_connected = names == others and before.end == window.start
                assert is_connected or self._has_delay(window)
            assert booked[0][0].start <= self.now or self._has_delay(booked[0][0])
            live = [each.window for each in self.fabric.timelines[key].bookings if each.window.end > self.now]
            assert live == [window for window, _ in booked]

    def _has_delay(self, window: Window) -> bool:
        return window.ready - window.start >= self.fabric.rules.reconfiguration_s - ROUNDING_S

    def _left_over(self) -> Mapping[Any, object]:
        return self.fabric.timelines

    def teardown(self) -> None:
        self.finish()


TestPacketMachine = PacketMachine.TestCase
TestCircuitMachine = CircuitMachine.TestCase
TestPacketMachine.settings = TestCircuitMachine.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None
)
