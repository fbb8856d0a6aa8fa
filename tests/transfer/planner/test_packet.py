"""Links that share their rate."""

from __future__ import annotations

import pytest

from protocol.errors import Overloaded, PlanRefused, StaleProposal, UnknownLease
from tests.transfer.planner.demands import MB, demand, egress, ingress, pair
from transfer.planner.lease import Lease, Pair, TransferDemand
from transfer.planner.ledger import LeaseTerms, Ledger
from transfer.planner.packet import PacketFabric
from transfer.planner.packet_search import MAX_LATER_STARTS, MAX_STEPS
from transfer.planner.profile import RateProfile

WHOLE = PacketFabric(max_share=1.0)


def sold(fabric: PacketFabric, wanted: TransferDemand, way: Pair | None = None) -> tuple[PacketFabric, Lease]:
    """Proposes and commits at 0 s."""
    return fabric.commit(fabric.propose(wanted, way or pair(wanted.source, wanted.destination), 0.0), 0.0)


def test_a_lease_asks_for_the_rate_of_production() -> None:
    """An idle port sells what the prefill needs and no more: both end together, without a tail."""
    proposal = WHOLE.propose(demand(90 * MB, rate=30 * MB, start=1.0), pair(), 0.0)
    (window,) = proposal.windows
    assert (window.start, window.ready, window.end, window.bytes_per_second) == (1.0, 1.0, 4.0, 30 * MB)
    assert proposal.tail_s == 0.0


@pytest.mark.parametrize(
    "way",
    [
        Pair(egress("p0", 10 * MB), ingress("d0"), 100 * MB),
        Pair(egress("p0"), ingress("d0", 10 * MB), 100 * MB),
        Pair(egress("p0"), ingress("d0"), 10 * MB),
    ],
)
def test_the_narrowest_of_egress_ingress_and_way_decides(way: Pair) -> None:
    """A transfer gets no more than any of the three has."""
    proposal = WHOLE.propose(demand(90 * MB), way, 0.0)
    assert proposal.windows[0].bytes_per_second == 10 * MB
    assert proposal.predicted_end == 9.0


def test_two_senders_share_an_ingress() -> None:
    """The second, no shorter, gets what the first left."""
    fabric, _ = sold(WHOLE, demand(70 * MB, rate=70 * MB, way=("p0", "d0")))
    _, second = sold(fabric, demand(70 * MB, rate=70 * MB, way=("p1", "d0")))
    assert second.bytes_per_second(0.0) == 30 * MB
    assert second.predicted_end == pytest.approx(1.4)


def test_one_lease_takes_at_most_its_share_of_a_port() -> None:
    """A long prompt leaves room for a short one that comes later."""
    fabric, long = sold(PacketFabric(max_share=0.5), demand(1000 * MB))
    _, short = sold(fabric, demand(10 * MB, way=("p1", "d0")))
    assert long.bytes_per_second(0.0) == 50 * MB
    assert short.bytes_per_second(0.0) == 50 * MB


def test_a_full_port_puts_the_start_off() -> None:
    """Nothing is free until the predicted end of a transfer that is no longer."""
    fabric, first = sold(WHOLE, demand(200 * MB))
    _, second = sold(fabric, demand(200 * MB, way=("p1", "d0")))
    assert (second.ready, second.predicted_end) == (first.predicted_end, 4.0)


def test_a_plan_takes_what_is_free_at_every_instant() -> None:
    """10 MB/s are free for 2 s, then all: 20 MB go at once, the rest when the port is free."""
    fabric, _ = sold(WHOLE, demand(180 * MB, rate=90 * MB))
    _, large = sold(fabric, demand(200 * MB, way=("p1", "d0")))
    assert [(each.start, each.bytes_per_second, each.num_bytes) for each in large.windows] == [
        (0.0, 10 * MB, 20 * MB),
        (2.0, 100 * MB, 180 * MB),
    ]
    assert large.predicted_end == pytest.approx(3.8)


def test_a_plan_over_many_steps_has_few_windows() -> None:
    """Behind the first steps it has what is free until one rate holds to the end."""
    fabric = WHOLE
    for index in range(40):
        fabric, _ = sold(fabric, demand(3 * (40 - index) * MB, rate=2 * MB, way=(f"p{index + 1}", "d0")))
    _, long = sold(fabric, demand(5000 * MB))
    assert long.ready == 0.0
    assert 2 < len(long.windows) <= MAX_STEPS + 2
    assert sum(each.num_bytes for each in long.windows) == 5000 * MB
    assert all(each.room_bytes(0.0) >= each.num_bytes * (1 - 1e-9) for each in long.windows)


def test_crumbs_of_a_port_are_not_sold() -> None:
    """Under a sixty-fourth of the port a lease waits, unless it asked for no more."""
    fabric, _ = sold(WHOLE, demand(99 * 100 * MB, rate=99 * MB))
    _, waiting = sold(fabric, demand(10_000 * MB, way=("p1", "d0")))
    _, modest = sold(fabric, demand(10 * MB, rate=MB, way=("p1", "d0")))
    assert waiting.ready == 100.0
    assert (modest.ready, modest.bytes_per_second(0.0)) == (0.0, MB)


def test_a_later_prefill_leaves_the_time_before_it_free() -> None:
    """A window begins with its prefill; a short transfer fits in front of it."""
    fabric, _ = sold(WHOLE, demand(500 * MB, start=5.0))
    _, short = sold(fabric, demand(400 * MB))
    assert (short.ready, short.predicted_end) == (0.0, 4.0)


def test_a_released_lease_gives_its_rate_back_at_once() -> None:
    """Early or finished, released twice or once: the next one finds the port free, and nothing is left behind."""
    fabric, first = sold(WHOLE, demand(200 * MB))
    early = fabric.release(first.lease_id, 0.5)
    assert early.profiles == {}
    assert early.release(first.lease_id, 0.6) == early
    finished, lease = fabric.progress(first.lease_id, 200 * MB, 1.0)
    assert lease is None
    assert (finished.profiles, finished.leases) == ({}, {})


def test_progress_hands_on_what_others_gave_back() -> None:
    """A lease that got little gets more as soon as there is more."""
    fabric, first = sold(WHOLE, demand(200 * MB, rate=90 * MB))
    fabric, second = sold(fabric, demand(15 * MB, way=("p1", "d0")))
    _, richer = fabric.release(first.lease_id, 0.5).progress(second.lease_id, 5 * MB, 0.5)
    assert richer is not None
    assert richer.bytes_per_second(0.5) == 100 * MB
    assert richer.predicted_end == pytest.approx(0.6)


def test_a_late_lease_holds_nothing_after_its_end_until_it_reports() -> None:
    """A shorter one that booked the time after it keeps it; the late one then gets what is free beside."""
    fabric, late = sold(WHOLE, demand(100 * MB))
    fabric, next_one = sold(fabric, demand(16 * MB, rate=80 * MB, start=1.0, way=("p1", "d0")))
    assert late.bytes_per_second(1.0) == 0
    fabric, planned = fabric.progress(late.lease_id, 80 * MB, 1.0)
    assert planned is not None
    assert planned.bytes_per_second(1.0) == 20 * MB
    assert fabric.leases[next_one.lease_id].bytes_per_second(1.0) == 80 * MB


def test_once_behind_a_lease_asks_to_catch_up() -> None:
    """Half is missing a quarter before the prefill's end: the rate doubles."""
    fabric, lease = sold(WHOLE, demand(80 * MB, rate=20 * MB))
    _, behind = fabric.progress(lease.lease_id, 40 * MB, 3.0)
    assert behind is not None
    assert behind.bytes_per_second(3.0) == 40 * MB
    assert behind.predicted_end == 4.0


def test_a_prefill_that_begins_later_moves_its_window() -> None:
    """The time before it is free again."""
    fabric, lease = sold(WHOLE, demand(100 * MB, rate=50 * MB))
    fabric, moved = fabric.reschedule(lease.lease_id, 3.0, 0.5)
    assert (moved.ready, moved.predicted_end) == (3.0, 5.0)
    assert fabric.propose(demand(200 * MB, start=0.5), pair(), 0.5).predicted_end == 2.5


def test_what_was_sold_meanwhile_makes_a_proposal_stale() -> None:
    """Two routers are offered the same rate; one gets it, and nothing is oversold."""
    first = WHOLE.propose(demand(100 * MB), pair(), 0.0)
    second = WHOLE.propose(demand(100 * MB, way=("p1", "d0")), pair("p1", "d0"), 0.0)
    fabric, _ = WHOLE.commit(first, 0.0)
    with pytest.raises(StaleProposal):
        fabric.commit(second, 0.0)
    with pytest.raises(StaleProposal):
        WHOLE.commit(first, first.predicted_end)


def test_a_port_measured_narrower_sells_nothing_until_it_fits() -> None:
    """What was sold stays sold."""
    fabric, first = sold(WHOLE, demand(100 * MB, rate=50 * MB))
    narrow = Pair(egress("p1"), ingress("d0", 40 * MB), 100 * MB)
    proposal = fabric.propose(demand(100 * MB, way=("p1", "d0")), narrow, 0.0)
    assert (proposal.ready, proposal.windows[0].bytes_per_second) == (first.predicted_end, 40 * MB)


def test_a_dead_router_loses_its_leases_and_a_living_one_does_not() -> None:
    """Expiry is put off by the owner's renewal and by progress, for the lease that progressed."""
    fabric = PacketFabric(Ledger(LeaseTerms(lease_s=3.0)))
    fabric, dead = sold(fabric, demand(1000 * MB, owner="dead"))
    fabric, moving = sold(fabric, demand(1000 * MB, owner="dead", way=("p1", "d1")))
    fabric, alive = sold(fabric, demand(1000 * MB, owner="alive", way=("p2", "d2")))
    fabric = fabric.renew("alive", 2.0)
    fabric, _ = fabric.progress(moving.lease_id, MB, 2.0)
    fabric, none_yet = fabric.expire(2.9)
    fabric, expired = fabric.expire(3.0)
    assert none_yet == ()
    assert [lease.lease_id for lease in expired] == [dead.lease_id]
    assert set(fabric.leases) == {moving.lease_id, alive.lease_id}
    with pytest.raises(UnknownLease):
        fabric.progress(dead.lease_id, MB, 3.0)
    with pytest.raises(UnknownLease):
        fabric.reschedule(dead.lease_id, 4.0, 3.0)


def test_acknowledged_bytes_never_go_back() -> None:
    """Reports that overtake each other change nothing."""
    fabric, lease = sold(WHOLE, demand(100 * MB))
    fabric, _ = fabric.progress(lease.lease_id, 50 * MB, 0.5)
    _, same = fabric.progress(lease.lease_id, 40 * MB, 0.5)
    assert same is not None
    assert same.acknowledged_bytes == 50 * MB


def test_the_number_of_leases_is_limited() -> None:
    """Beyond it a commit is refused for now."""
    fabric, _ = sold(PacketFabric(Ledger(LeaseTerms(max_leases=1))), demand(MB))
    with pytest.raises(Overloaded):
        sold(fabric, demand(MB))


@pytest.mark.parametrize(("num_bytes", "rate", "start"), [(0, 1, 0.0), (1, 0, 0.0), (1, 1, float("nan"))])
def test_a_demand_that_makes_no_sense_is_refused(num_bytes: int, rate: int, start: float) -> None:
    """Nothing to send, nothing produced, no time."""
    with pytest.raises(PlanRefused):
        demand(num_bytes, rate, start)


def test_ports_of_other_workers_are_refused() -> None:
    """A pair must be the demand's, and its ports must face the right way."""
    with pytest.raises(PlanRefused):
        WHOLE.propose(demand(MB), pair("p1", "d0"), 0.0)
    with pytest.raises(PlanRefused):
        Pair(ingress("p0"), ingress("d0"), MB)
    with pytest.raises(PlanRefused):
        egress("p0", 0)


def test_a_window_on_a_clock_that_counts_since_1970_has_a_length() -> None:
    """One byte at a high rate is shorter than such a clock can tell; the window is not."""
    now = 1.8e9
    proposal = WHOLE.propose(demand(1, rate=10**12, start=now), pair(rate=10**12), now)
    _, lease = WHOLE.commit(proposal, now)
    assert lease.predicted_end > now


def test_a_search_over_a_thousand_leases_looks_at_few_instants(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full port with a thousand later steps is not walked for each start that is tried."""
    fabric = WHOLE
    for index in range(1000):
        fabric, _ = sold(fabric, demand(100 * MB, way=(f"p{index % 2}", "d0")))
    instants: list[float] = []
    read = RateProfile.at

    def counted(profile: RateProfile, time: float) -> int:
        instants.append(time)
        return read(profile, time)

    monkeypatch.setattr(RateProfile, "at", counted)
    proposal = fabric.propose(demand(100 * MB), pair(), 0.0)
    assert (proposal.ready, proposal.predicted_end) == (1000.0, 1001.0)
    assert len(instants) < 100


def test_a_search_among_a_thousand_uneven_steps_walks_them_a_bounded_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A low rate crosses every step that is sold, once for each of the few starts that are tried."""
    fabric = WHOLE
    for index in range(1000):
        fabric, _ = sold(fabric, demand(30 * MB + index % 7, rate=(30 + index % 5) * MB, start=index, way=("p1", "d0")))
    changes: list[float] = []
    read = RateProfile.next_change

    def counted(profile: RateProfile, time: float) -> float:
        changes.append(time)
        return read(profile, time)

    monkeypatch.setattr(RateProfile, "next_change", counted)
    proposal = fabric.propose(demand(50_000 * MB, way=("p2", "d0")), pair("p2", "d0"), 0.0)
    num_steps = len(fabric.profiles["ingress", "d0"].times)
    assert proposal.ready == 0.0
    assert num_steps > 1000
    assert len(changes) <= 3 * (MAX_LATER_STARTS + 2) * num_steps
