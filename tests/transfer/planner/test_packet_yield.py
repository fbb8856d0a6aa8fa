"""Shortest remaining first: who yields to whom on links that share their rate, and how far."""

from __future__ import annotations

import pytest

from protocol.errors import StaleProposal
from tests.transfer.planner.demands import MB, demand, pair
from transfer.planner.lease import Lease, TransferDemand
from transfer.planner.packet import SHORTER, PacketFabric

FLOOR = 100 * MB // 32
LINKS = PacketFabric()


def sold(fabric: PacketFabric, wanted: TransferDemand, now: float = 0.0) -> tuple[PacketFabric, Lease]:
    """Proposes and commits."""
    return fabric.commit(fabric.propose(wanted, pair(wanted.source, wanted.destination), now), now)


def test_a_short_newcomer_beside_a_long_transfer_gets_nearly_all_of_the_port() -> None:
    """The long one yields to its floor, for as long as the short one takes, and has the port again behind it."""
    fabric, long = sold(LINKS, demand(1000 * MB))
    fabric, short = sold(fabric, demand(15 * MB, way=("p1", "d0")))
    yielded = fabric.leases[long.lease_id]
    assert short.bytes_per_second(0.0) >= 7 / 8 * 100 * MB
    assert [each.bytes_per_second for each in yielded.windows] == [FLOOR, 31 * FLOOR]
    assert yielded.windows[0].end == short.predicted_end
    assert sum(each.num_bytes for each in yielded.windows) == 1000 * MB


def test_nobody_yields_more_than_is_missing_and_the_longest_first() -> None:
    """A newcomer that is produced slowly takes from the longest what it lacks; the other keeps all."""
    fabric, longest = sold(LINKS, demand(1000 * MB, rate=50 * MB))
    fabric, long = sold(fabric, demand(500 * MB, rate=40 * MB, way=("p1", "d0")))
    fabric, short = sold(fabric, demand(30 * MB, rate=30 * MB, way=("p2", "d0")))
    assert short.bytes_per_second(0.0) == 30 * MB
    assert fabric.leases[longest.lease_id].bytes_per_second(0.0) == 30 * MB
    assert fabric.leases[long.lease_id].bytes_per_second(0.0) == 40 * MB


def test_a_longer_newcomer_takes_what_is_free() -> None:
    """Nobody yields to it."""
    fabric, short = sold(LINKS, demand(100 * MB))
    fabric, long = sold(fabric, demand(1000 * MB, way=("p1", "d0")))
    assert fabric.leases[short.lease_id] == short
    assert long.bytes_per_second(0.0) == 100 * MB - 31 * FLOOR


def test_many_short_ones_never_take_the_floor_of_a_long_one() -> None:
    """Short ones that fill the port between them leave it a floor at every instant, and it ends."""
    fabric, long = sold(LINKS, demand(50 * MB))
    done, now, num_shorts = 0.0, 0.0, 0
    while long.lease_id in fabric.leases:
        fabric, _ = sold(fabric, demand(930_000, start=now, way=(f"p{num_shorts % 5}", "d0")), now)
        num_shorts += 1
        rate = fabric.leases[long.lease_id].bytes_per_second(now)
        assert rate >= FLOOR
        done, now = done + rate * 0.01, now + 0.01
        for lease in tuple(fabric.leases.values()):
            if lease.predicted_end <= now and lease.lease_id != long.lease_id:
                fabric = fabric.release(lease.lease_id, now)
        fabric, _ = fabric.progress(long.lease_id, int(done), now)
    assert num_shorts > 400
    assert now <= 32 * 0.5 + 0.02


def test_a_lease_gets_back_what_is_free_with_its_next_progress() -> None:
    """The short one ended before its time."""
    fabric, long = sold(LINKS, demand(1000 * MB))
    fabric, short = sold(fabric, demand(100 * MB, way=("p1", "d0")))
    fabric = fabric.release(short.lease_id, 0.5)
    assert fabric.leases[long.lease_id].bytes_per_second(0.5) == FLOOR
    _, regained = fabric.progress(long.lease_id, 3 * MB, 0.5)
    assert regained is not None
    assert regained.bytes_per_second(0.5) == 31 * FLOOR


def test_progress_of_a_longer_lease_leaves_the_shorter_what_it_holds() -> None:
    """It takes its floor and what is free later."""
    fabric, long = sold(LINKS, demand(1000 * MB))
    fabric, short = sold(fabric, demand(100 * MB, way=("p1", "d0")))
    fabric, moved = fabric.progress(long.lease_id, MB, 0.5)
    assert moved is not None
    assert moved.bytes_per_second(0.5) == FLOOR
    assert fabric.leases[short.lease_id] == short


def test_a_lease_that_has_become_shorter_makes_the_other_yield() -> None:
    """It had to wait as the longer one; now less of it is left."""
    fabric, first = sold(LINKS, demand(300 * MB))
    fabric, second = sold(fabric, demand(320 * MB, way=("p1", "d0")))
    assert second.bytes_per_second(0.0) == 100 * MB - 31 * FLOOR
    fabric, moved = fabric.progress(second.lease_id, 200 * MB, 1.0)
    assert moved is not None
    assert moved.bytes_per_second(1.0) == 31 * FLOOR
    assert fabric.leases[first.lease_id].bytes_per_second(1.0) == FLOOR


def test_a_proposal_says_who_would_yield_and_changes_nothing() -> None:
    """To which windows; the commit does just that."""
    fabric, long = sold(LINKS, demand(1000 * MB))
    proposal = fabric.propose(demand(15 * MB, way=("p1", "d0")), pair("p1", "d0"), 0.0)
    (told,) = proposal.yields
    assert (told.lease_id, told.before) == (long.lease_id, long.windows)
    assert fabric.leases[long.lease_id] == long
    after, _ = fabric.commit(proposal, 0.0)
    assert after.leases[long.lease_id].windows == told.after


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_proposal_is_stale_once_who_would_yield_has_changed(is_gone: bool) -> None:
    """Gone or planned anew: nothing is committed."""
    fabric, long = sold(LINKS, demand(1000 * MB))
    proposal = fabric.propose(demand(15 * MB, way=("p1", "d0")), pair("p1", "d0"), 0.0)
    other = fabric.release(long.lease_id, 0.0) if is_gone else fabric.progress(long.lease_id, 500 * MB, 0.01)[0]
    with pytest.raises(StaleProposal):
        other.commit(proposal, 0.01)


def test_a_newcomer_on_another_port_asks_nobody_to_yield() -> None:
    """Only leases on a common port are in its way."""
    fabric, long = sold(LINKS, demand(1000 * MB))
    proposal = fabric.propose(demand(15 * MB, way=("p1", "d1")), pair("p1", "d1"), 0.0)
    assert proposal.yields == ()
    assert fabric.leases[long.lease_id] == long


def test_what_a_lease_yields_on_one_port_others_may_have_on_its_other() -> None:
    """The long one yields egress and ingress alike: a plan behind it knows."""
    fabric, long = sold(LINKS, demand(1000 * MB, way=("p0", "d0")))
    fabric, short = sold(fabric, demand(15 * MB, way=("p0", "d1")))
    _, other = sold(fabric, demand(2000 * MB, way=("p1", "d0")))
    assert other.bytes_per_second(0.0) == 31 * FLOOR
    assert short.predicted_end == other.windows[0].end
    assert fabric.leases[long.lease_id].bytes_per_second(0.0) == FLOOR


NUM_IN_FLIGHT = 3


def num_changes(num_long: int, num_short: int) -> int:
    """How often the lead changes between a transfer with `num_long` chunks left and a newcomer with `num_short`.

    Who leads sends chunk by chunk and reports each; what it has in flight when it yields still arrives.
    """
    fabric, long = sold(LINKS, demand(num_long * MB))
    fabric, short = sold(fabric, demand(num_short * MB, way=("p1", "d0")))
    leases, now = (long.lease_id, short.lease_id), 0.0
    left, done = {leases[0]: num_long, leases[1]: num_short}, dict.fromkeys(leases, 0)
    leader, changes = leases[0], 0
    while True:
        rates = {one: fabric.leases[one].bytes_per_second(now) for one in leases}
        first = max(leases, key=lambda one: (rates[one], one == leader))
        num_chunks = 1
        if first != leader:  # what is in flight arrives, and is reported together
            leader, changes, num_chunks, first = first, changes + 1, min(NUM_IN_FLIGHT, left[leader]), leader
        now += num_chunks * 0.01
        left[first] -= num_chunks
        done[first] += num_chunks * MB
        fabric, _ = fabric.progress(first, done[first], now)
        if not left[first]:
            return changes


@pytest.mark.parametrize("num_long", [8, 12, 16, 20, 40])
def test_transfers_of_nearly_one_size_do_not_take_the_link_from_each_other_in_turn(num_long: int) -> None:
    """What is in flight when one yields makes it the shorter of the two again: that is no reason to take the link back. The
    newcomer takes it, if it is clearly shorter, or does not, and the one that leads then ends.
    """
    for num_short in range(NUM_IN_FLIGHT, num_long + 1):
        assert num_changes(num_long, num_short) == (num_short <= SHORTER * num_long)
