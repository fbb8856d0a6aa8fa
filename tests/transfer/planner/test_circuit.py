"""Circuits on a virtual clock: the delay, gaps, batching per pair, late and early prefills."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from protocol.errors import PlanRefused, StaleProposal
from tests.transfer.planner.demands import GIB, MB, demand, pair
from transfer.planner.circuit import CircuitFabric
from transfer.planner.circuit_search import CircuitRules
from transfer.planner.lease import Lease, Proposal, TransferDemand
from transfer.planner.ledger import LeaseTerms, Ledger
from transfer.planner.timeline import Booking, Timeline

DELAY_S = 1.0
FAST = 50_000_000_000  # 400 Gb/s
IDLE = CircuitFabric(CircuitRules(DELAY_S, min_slice_bytes=10 * MB))
SLOW_SWITCH = CircuitFabric(CircuitRules(0.05))
INSTANT = 10**15  # bytes per second of a prefill that is over at once


def booked(fabric: CircuitFabric, wanted: TransferDemand, now: float = 0.0) -> tuple[CircuitFabric, Lease]:
    """Proposes and commits on a switch of 100 MB/s a port."""
    return fabric.commit(fabric.propose(wanted, pair(wanted.source, wanted.destination), now), now)


def spans(plan: Lease | Proposal) -> list[tuple[float, float, float]]:
    """Start, ready and end of each window, in microseconds' precision."""
    return [(round(each.start, 6), round(each.ready, 6), round(each.end, 6)) for each in plan.windows]


def test_a_window_is_the_delay_and_the_bytes() -> None:
    """An idle switch: set up at once, then the port's rate."""
    _, lease = booked(IDLE, demand(200 * MB, INSTANT))
    assert spans(lease) == [(0.0, 1.0, 3.0)]
    assert (lease.bytes_per_second(0.5), lease.bytes_per_second(1.0), lease.bytes_per_second(3.0)) == (0, 100 * MB, 0)


def test_the_delay_hides_behind_the_prefill() -> None:
    """A circuit is ordered while the prefill computes, as late as it may be, and the transfer ends with the prefill."""
    proposal = IDLE.propose(demand(200 * MB, rate=20 * MB), pair(), 0.0)
    assert (proposal.windows[0].start, proposal.ready, proposal.predicted_end) == (7.0, 8.0, 10.0)
    assert proposal.tail_s == 0.0


def test_a_prefill_shorter_than_the_delay_leaves_a_stall() -> None:
    """The residual stall is what of the delay the prefill did not hide."""
    proposal = IDLE.propose(demand(200 * MB, rate=400 * MB), pair(), 0.0)
    assert proposal.tail_s == pytest.approx(DELAY_S + 2.0 - 0.5)


def test_a_port_has_one_peer_at_a_time() -> None:
    """Another source to the same destination, and another destination from the same source, both wait; strangers do not."""
    fabric, _ = booked(IDLE, demand(200 * MB, INSTANT))
    assert spans(booked(fabric, demand(100 * MB, INSTANT, way=("p1", "d0")))[1]) == [(3.0, 4.0, 5.0)]
    assert spans(booked(fabric, demand(100 * MB, INSTANT, way=("p0", "d1")))[1]) == [(3.0, 4.0, 5.0)]
    assert spans(booked(fabric, demand(100 * MB, INSTANT, way=("p1", "d1")))[1]) == [(0.0, 1.0, 2.0)]


def test_adjacent_windows_of_a_pair_pay_the_delay_once() -> None:
    """The second and third find the circuit up; after another pair's window it is not."""
    fabric, _ = booked(IDLE, demand(200 * MB, INSTANT))
    fabric, second = booked(fabric, demand(100 * MB, INSTANT))
    fabric, _ = booked(fabric, demand(100 * MB, INSTANT, way=("p1", "d0")))
    _, fourth = booked(fabric, demand(100 * MB, INSTANT))
    assert spans(second) == [(3.0, 3.0, 4.0)]
    assert spans(fourth) == [(6.0, 7.0, 8.0)]


def test_a_circuit_is_kept_for_less_than_a_delay_but_not_longer() -> None:
    """Bytes that come half a delay later hold the circuit; bytes that come much later set it up again."""
    fabric, _ = booked(IDLE, demand(200 * MB, INSTANT))
    _, soon = booked(fabric, demand(100 * MB, INSTANT, start=3.5))
    _, later = booked(fabric, demand(100 * MB, INSTANT, start=8.0))
    assert spans(soon) == [(3.0, 3.0, 4.5)]
    assert spans(later) == [(7.0, 8.0, 9.0)]


def test_a_gap_is_filled_and_the_rest_goes_to_a_later_window() -> None:
    """A gap of 4 s carries 3 s of bytes; what is left follows the reservation that it did not disturb."""
    fabric, later = booked(IDLE, demand(200 * MB, INSTANT, start=5.0))
    assert spans(later) == [(4.0, 5.0, 7.0)]
    fabric, cut = booked(fabric, demand(500 * MB, INSTANT, way=("p1", "d0")))
    assert spans(cut) == [(0.0, 1.0, 4.0), (7.0, 8.0, 10.0)]
    assert [window.num_bytes for window in cut.windows] == [300 * MB, 200 * MB]
    assert fabric.leases[later.lease_id] == later


def test_a_gap_without_room_for_the_delay_and_something_useful_is_skipped() -> None:
    """1.05 s of gap carry 5 MB after the delay: under the least slice, unless the whole rest fits."""
    fabric, _ = booked(IDLE, demand(200 * MB, INSTANT, start=2.05))
    assert spans(booked(fabric, demand(100 * MB, INSTANT, way=("p1", "d0")))[1]) == [(4.05, 5.05, 6.05)]
    assert spans(booked(fabric, demand(4 * MB, INSTANT, way=("p1", "d0")))[1]) == [(0.0, 1.0, 1.04)]


def test_a_gap_carries_no_more_than_the_prefill_has_produced() -> None:
    """At 25 MB/s only 100 MB exist when the gap of 4 s ends; the window is as long as these need."""
    fabric, _ = booked(IDLE, demand(200 * MB, INSTANT, start=5.0))
    _, cut = booked(fabric, demand(200 * MB, rate=25 * MB, way=("p1", "d0")))
    assert spans(cut) == [(2.0, 3.0, 4.0), (7.0, 8.0, 9.0)]


def test_a_transfer_is_cut_into_a_bounded_number_of_windows() -> None:
    """The last one is where everything left fits."""
    fabric = CircuitFabric(CircuitRules(DELAY_S, 10 * MB, max_windows=2))
    for start in (3.0, 7.0, 11.0):
        fabric, _ = booked(fabric, demand(100 * MB, INSTANT, start=start))
    _, cut = booked(fabric, demand(1000 * MB, INSTANT, way=("p1", "d0")))
    assert spans(cut) == [(0.0, 1.0, 2.0), (12.0, 13.0, 22.0)]


def test_a_late_prefill_slides_its_window_if_the_next_reservation_allows() -> None:
    """The circuit is set up later, and the time before is free again."""
    fabric, lease = booked(IDLE, demand(100 * MB, rate=20 * MB))
    assert spans(lease) == [(3.0, 4.0, 5.0)]
    fabric, slid = fabric.reschedule(lease.lease_id, 2.0, 1.0)
    assert (slid.lease_id, spans(slid)) == (lease.lease_id, [(5.0, 6.0, 7.0)])
    assert spans(booked(fabric, demand(300 * MB, INSTANT, 1.0, ("p1", "d0")), 1.0)[1]) == [(1.0, 2.0, 5.0)]


def test_a_prefill_that_is_late_on_a_circuit_that_is_up_keeps_it_for_less_than_a_delay() -> None:
    """Half a second late: held. Two seconds late: given back and set up again."""
    fabric, lease = booked(IDLE, demand(100 * MB, rate=20 * MB))
    assert spans(fabric.reschedule(lease.lease_id, 0.5, 3.9)[1]) == [(3.0, 4.0, 5.5)]
    assert spans(fabric.reschedule(lease.lease_id, 2.0, 3.9)[1]) == [(5.0, 6.0, 7.0)]


def test_a_late_prefill_whose_port_is_promised_is_queued_again() -> None:
    """The next reservation stands; what is not produced in time for the gap before it goes behind it."""
    fabric, lease = booked(IDLE, demand(100 * MB, rate=20 * MB))
    fabric, promised = booked(fabric, demand(100 * MB, INSTANT, start=6.0, way=("p1", "d0")))
    assert spans(promised) == [(5.0, 6.0, 7.0)]
    fabric, queued = fabric.reschedule(lease.lease_id, 1.0, 1.0)
    assert spans(queued) == [(3.2, 4.2, 5.0), (7.0, 8.0, 8.2)]
    assert fabric.leases[promised.lease_id] == promised
    _, much_later = fabric.reschedule(lease.lease_id, 4.6, 1.0)
    assert spans(much_later) == [(7.6, 8.6, 9.6)]


def test_a_lateness_that_the_window_has_room_for_changes_nothing() -> None:
    """A transfer that waits for its port anyway does not mind."""
    fabric, _ = booked(IDLE, demand(500 * MB, INSTANT))
    fabric, lease = booked(fabric, demand(100 * MB, rate=100 * MB, way=("p1", "d0")))
    _, same = fabric.reschedule(lease.lease_id, 2.0, 0.5)
    assert same.windows == lease.windows


def test_an_early_prefill_gets_an_earlier_window_if_one_is_free() -> None:
    """And starts as soon as the circuit is up."""
    fabric, lease = booked(IDLE, demand(100 * MB, rate=20 * MB, start=5.0))
    assert spans(lease) == [(8.0, 9.0, 10.0)]
    _, moved = fabric.reschedule(lease.lease_id, 1.0, 1.0)
    assert spans(moved) == [(4.0, 5.0, 6.0)]


def test_an_early_prefill_starts_on_the_circuit_that_is_up() -> None:
    """Its bytes are acknowledged sooner than planned, and what is left of the window is given back at once."""
    fabric, lease = booked(IDLE, demand(200 * MB, rate=100 * MB, start=1.0))
    fabric, held = fabric.reschedule(lease.lease_id, 0.0, 0.9)
    assert held.windows == lease.windows
    fabric, ended = fabric.progress(lease.lease_id, 200 * MB, 2.0)
    assert ended is None
    assert spans(booked(fabric, demand(100 * MB, INSTANT, 2.0, ("p1", "d0")), 2.0)[1]) == [(2.0, 3.0, 4.0)]


def test_progress_on_time_changes_no_window() -> None:
    """The plan holds what is left."""
    fabric, lease = booked(IDLE, demand(200 * MB, INSTANT))
    _, same = fabric.progress(lease.lease_id, 100 * MB, 2.0)
    assert same is not None
    assert same.windows == lease.windows


def test_a_late_transfer_gets_a_longer_window_or_another_one() -> None:
    """Longer if the next reservation allows; else what is missing follows behind it."""
    fabric, lease = booked(IDLE, demand(200 * MB, INSTANT))
    _, longer = fabric.progress(lease.lease_id, 50 * MB, 2.0)
    assert longer is not None
    assert spans(longer) == [(0.0, 1.0, 3.5)]
    fabric, _ = booked(fabric, demand(100 * MB, INSTANT, way=("p1", "d0")))
    _, cut = fabric.progress(lease.lease_id, 50 * MB, 2.0)
    assert cut is not None
    assert spans(cut) == [(0.0, 1.0, 3.0), (5.0, 6.0, 6.5)]


def test_a_transfer_whose_windows_are_over_is_placed_anew() -> None:
    """Nothing came in time; nothing is lost."""
    fabric, lease = booked(IDLE, demand(200 * MB, INSTANT))
    _, again = fabric.progress(lease.lease_id, 0, 4.0)
    assert again is not None
    assert spans(again) == [(4.0, 5.0, 7.0)]


def test_the_next_window_of_the_pair_inherits_the_circuit_that_is_given_back() -> None:
    """Before it is up: set up for the heir alone. While it is up: kept for the heir, who may use it at once."""
    fabric, first = booked(IDLE, demand(200 * MB, INSTANT))
    fabric, second = booked(fabric, demand(100 * MB, INSTANT))
    unused = fabric.release(first.lease_id, 0.0)
    assert spans(unused.leases[second.lease_id]) == [(2.0, 3.0, 4.0)]
    in_use = fabric.release(first.lease_id, 2.5)
    assert spans(in_use.leases[second.lease_id]) == [(0.0, 1.0, 4.0)]
    over = fabric.release(first.lease_id, 3.0)
    assert over.leases[second.lease_id] == second


def test_a_dead_router_frees_its_circuits() -> None:
    """Expiry gives the ports to whoever comes next; a living router's windows stay."""
    fabric = CircuitFabric(CircuitRules(DELAY_S), Ledger(LeaseTerms(lease_s=3.0)))
    fabric, dead = booked(fabric, demand(1000 * MB, INSTANT, owner="dead"))
    fabric, alive = booked(fabric, demand(100 * MB, INSTANT, owner="alive", way=("p1", "d1")))
    fabric, expired = fabric.renew("alive", 2.0).expire(3.0)
    assert [lease.lease_id for lease in expired] == [dead.lease_id]
    assert set(fabric.leases) == {alive.lease_id}
    assert fabric.propose(demand(100 * MB, INSTANT, 3.0), pair(), 3.0).predicted_end == 5.0


def test_a_window_that_is_taken_or_has_begun_makes_a_proposal_stale() -> None:
    """A switch cannot be told in the past."""
    first = IDLE.propose(demand(100 * MB, INSTANT), pair(), 0.0)
    fabric, lease = IDLE.commit(first, 0.0)
    with pytest.raises(StaleProposal):
        fabric.commit(IDLE.propose(demand(100 * MB, INSTANT, way=("p1", "d0")), pair("p1", "d0"), 0.0), 0.0)
    with pytest.raises(StaleProposal):
        IDLE.commit(first, 0.1)
    follower = fabric.propose(demand(100 * MB, INSTANT), pair(), 0.0)
    with pytest.raises(StaleProposal):
        fabric.release(lease.lease_id, 0.0).commit(follower, 0.0)


def test_rules_that_make_no_sense_are_refused() -> None:
    """No negative delay."""
    with pytest.raises(PlanRefused):
        CircuitRules(-0.1)


def test_a_slow_switch_is_useful_a_third_of_the_time_when_pairs_change() -> None:
    """The sizing check: 8,192 tokens of 128 KiB are 1 GiB, 21 ms at 400 Gb/s; 50 ms of reconfiguration leave 30 percent."""
    transfer_s = 8192 * 128 * 1024 / FAST
    assert 0.021 < transfer_s < 0.022
    alone = SLOW_SWITCH.propose(demand(GIB, INSTANT), pair(rate=FAST), 0.0)
    assert transfer_s / alone.predicted_end == pytest.approx(0.30, abs=0.005)


def test_batching_per_pair_pays() -> None:
    """Ten transfers of one pair pay 50 ms once and use four fifths of the port; of two in turn they pay it ten times."""

    def end_of_ten(num_sources: int) -> float:
        fabric, end = SLOW_SWITCH, 0.0
        for index in range(10):
            way = (f"p{index % num_sources}", "d0")
            proposal = fabric.propose(demand(GIB, INSTANT, way=way), pair(*way, FAST), 0.0)
            fabric, lease = fabric.commit(proposal, 0.0)
            end = max(end, lease.predicted_end)
        return end

    transfer_s = GIB / FAST
    assert end_of_ten(1) == pytest.approx(0.05 + 10 * transfer_s)
    assert end_of_ten(2) == pytest.approx(10 * (0.05 + transfer_s))
    assert 10 * transfer_s / end_of_ten(1) == pytest.approx(0.81, abs=0.005)


def test_a_slow_switch_is_hidden_by_a_prefill_of_more_than_its_delay() -> None:
    """1 GiB produced in 400 ms: the circuit is ordered 71 ms before the prefill ends, and nothing is left after it."""
    proposal = SLOW_SWITCH.propose(demand(GIB, rate=int(GIB / 0.4)), pair(rate=FAST), 0.0)
    assert proposal.tail_s == pytest.approx(0.0, abs=1e-6)
    assert proposal.windows[0].start == pytest.approx(0.4 - 0.05 - GIB / FAST, abs=1e-6)


class _CountingTuple(tuple[Booking, ...]):
    """Counts how many bookings a search looks at."""

    num_reads = 0

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        _CountingTuple.num_reads += len(found) if isinstance(index, slice) else 1
        return found


@pytest.mark.parametrize("start", [0.0, 1990.0])
def test_a_search_over_a_thousand_bookings_reads_each_at_most_once(start: float) -> None:
    """Bookings before the demand are skipped by bisection, the others are walked once."""
    fabric = IDLE
    for index in range(1000):
        fabric, _ = booked(fabric, demand(100 * MB, INSTANT, way=(f"p{index % 2}", "d0")))
    before = fabric.propose(demand(100 * MB, INSTANT, start, ("p2", "d0")), pair("p2", "d0"), 0.0)
    bookings = fabric.timelines["ingress", "d0"].bookings
    timelines = {**fabric.timelines, ("ingress", "d0"): Timeline(_CountingTuple(bookings))}
    _CountingTuple.num_reads = 0
    proposal = replace(fabric, timelines=timelines).propose(before.demand, before.pair, 0.0)
    assert proposal == before
    assert spans(proposal) == [(2000.0, 2001.0, 2002.0)]
    assert _CountingTuple.num_reads <= (1020 if start == 0.0 else 30)
