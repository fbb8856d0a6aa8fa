"""The planner as routers talk to it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import Overloaded, PlanRefused
from protocol.pace import Pace
from tests.transfer.planner.demands import MB
from transfer.planner.circuit import CircuitFabric
from transfer.planner.circuit_search import CircuitRules
from transfer.planner.desk import PlannerDesk
from transfer.planner.lease import Direction
from transfer.planner.ledger import LeaseTerms, Ledger
from transfer.planner.network import NetworkSight, PairSight, TransferAsk
from transfer.planner.packet import PacketFabric
from transfer.planner.planner import TransferPlanner

WAYS = (("p0", "d0"), ("p0", "d1"), ("p1", "d0"), ("p1", "d1"))


def sight(*ways: tuple[str, str], tested: float = 100e6, measured: float = 0.0) -> NetworkSight:
    """Links as their self-tests found them."""
    return NetworkSight(tuple(PairSight(source, to, tested, measured) for source, to in ways or WAYS))


def desk_of(max_share: float = 1.0, max_leases: int = 100, fixed: int | None = None) -> PlannerDesk:
    """Two sources and two destinations of 100 MB/s each, seen by one router."""
    fabric = PacketFabric(Ledger(LeaseTerms(max_leases=max_leases)), max_share)
    desk = PlannerDesk(TransferPlanner(fabric, fixed))
    desk.observe("r0", sight(), 0.0)
    return desk


def ask(num_bytes: int, rate: int, way: tuple[str, str] = ("p0", "d0"), start_in_s: float = 0.0) -> TransferAsk:
    """A transfer of a prefill."""
    return TransferAsk("request", *way, num_bytes, rate, start_in_s)


def ids(desk: PlannerDesk, now: float) -> dict[str, list[int]]:
    """Whose leases have another pace."""
    return {owner: [lease_id for lease_id, _ in told] for owner, told in desk.changes(now).items()}


def test_a_reservation_answers_with_its_first_pace() -> None:
    """What is held, and what is idle beside it; nothing has to be told again."""
    desk = desk_of()
    lease_id, pace = desk.reserve("r0", ask(90 * MB, 30 * MB), 0.0)
    assert (pace.reserved_bytes_per_second, pace.allowed_bytes_per_second) == (30 * MB, 100 * MB)
    assert not pace.is_shared
    assert desk.changes(0.0) == {}
    assert lease_id > 0


def test_a_newcomer_changes_the_pace_of_others_and_its_end_changes_it_back() -> None:
    """The owner of the older lease is told once, each time."""
    desk = desk_of()
    first, _ = desk.reserve("r0", ask(300 * MB, 30 * MB), 0.0)
    second, pace = desk.reserve("r1", ask(20 * MB, 20 * MB, ("p1", "d0")), 0.1)
    assert pace.is_shared
    ((_, told),) = desk.changes(0.1)["r0"]
    assert told.allowed_bytes_per_second == pytest.approx(60 * MB)
    assert told.is_shared
    assert desk.changes(0.2) == {}
    desk.release(second, 0.3)
    ((lease_id, told),) = desk.changes(0.3)["r0"]
    assert lease_id == first
    assert (told.allowed_bytes_per_second, told.is_shared) == (100 * MB, False)


def test_a_dead_routers_leases_expire_and_the_paces_of_others_rise() -> None:
    """Who renews keeps its leases."""
    desk = desk_of()
    desk.reserve("dead", ask(3000 * MB, 50 * MB), 0.0)
    alive, _ = desk.reserve("alive", ask(3000 * MB, 50 * MB), 0.0)
    desk.changes(0.0)
    desk.renew("alive", 9.0)
    ((lease_id, told),) = desk.changes(10.0)["alive"]
    assert (lease_id, told.allowed_bytes_per_second, told.is_shared) == (alive, 100 * MB, False)
    assert desk.use(10.0).num_expired == 1


def test_a_shared_pace_is_told_again_before_its_sender_drops_it() -> None:
    """Every ten seconds, though nothing has changed; a lone transfer's is not."""
    desk = desk_of()
    desk.reserve("r0", ask(9000 * MB, 30 * MB), 0.0)
    for time in range(0, 60, 5):
        desk.renew("r0", time)
        assert desk.changes(time) == {}
    desk = desk_of()
    leases = [desk.reserve("r0", ask(9000 * MB, 20 * MB, (source, "d0")), 0.0)[0] for source in ("p0", "p1")]
    desk.changes(0.0)
    for now in (10.0, 20.0):
        desk.renew("r0", now - 1.0)
        assert desk.changes(now - 0.5) == {}
        assert sorted(ids(desk, now)["r0"]) == leases


def test_a_short_newcomer_makes_a_long_transfer_slower_and_its_end_faster_again() -> None:
    """The long one is told its floor, and with its next progress the port."""
    desk = desk_of(max_share=15 / 16)
    long, _ = desk.reserve("r0", ask(3000 * MB, 900 * MB), 0.0)
    short, pace = desk.reserve("r1", ask(30 * MB, 900 * MB, ("p1", "d0")), 0.0)
    assert pace.allowed_bytes_per_second >= 7 / 8 * 100 * MB
    ((_, told),) = desk.changes(0.0)["r0"]
    assert told.allowed_bytes_per_second == pytest.approx(100 * MB / 16)
    desk.progress(short, 30 * MB, 0.32)
    desk.progress(long, 2 * MB, 0.32)
    ((lease_id, told),) = desk.changes(0.32)["r0"]
    assert (lease_id, told.allowed_bytes_per_second, told.is_shared) == (long, 100 * MB, False)


def test_circuits_are_told_when_they_are_up() -> None:
    """Nothing may be sent while one is set up (50 ms) or is another's; all of it inside the window."""
    desk = PlannerDesk(TransferPlanner(CircuitFabric(CircuitRules(0.05))))
    desk.observe("r0", sight(), 0.0)
    first, pace = desk.reserve("r0", ask(100 * MB, 1000 * MB), 0.0)
    second, other = desk.reserve("r0", ask(100 * MB, 1000 * MB, ("p1", "d0")), 0.0)
    assert (pace.allowed_bytes_per_second, other.allowed_bytes_per_second) == (0.0, 0.0)
    told = {now: [(each, new.allowed_bytes_per_second) for each, new in desk.changes(now).get("r0", [])]
            for now in (0.01, 0.06, 1.06, 1.11)}  # fmt: skip
    assert told == {0.01: [], 0.06: [(first, 100 * MB)], 1.06: [(first, 0.0)], 1.11: [(second, 100 * MB)]}


asks = st.builds(
    ask,
    st.integers(1, 200 * MB),
    st.integers(MB, 300 * MB),
    st.sampled_from(WAYS),
    st.floats(-1.0, 3.0, allow_nan=False),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(asks, st.integers(0, 8), st.floats(0.05, 1.0)), min_size=1, max_size=12))
def test_every_transfer_that_keeps_to_its_pace_ends(chosen: list[tuple[TransferAsk, int, float]]) -> None:
    """Whoever comes when, and however little some send of what they may; what is told is what holds, and nothing is left."""
    desk, told, sent, eagerness = desk_of(max_share=15 / 16), dict[int, Pace](), dict[int, float](), dict[int, float]()
    tick = 0
    while tick < 40_000 and (tick <= 8 or desk.num_leases):
        now = tick / 4
        for wanted, at_tick, part in chosen:
            if at_tick == tick:
                lease_id, told[lease_id] = desk.reserve("r0", wanted, now)
                sent[lease_id], eagerness[lease_id] = 0.0, part
        told |= dict(desk.changes(now).get("r0", []))
        leases = desk.use(now).leases
        for lease in leases:
            before, after = told[lease.lease_id].allowed_bytes_per_second, lease.pace.allowed_bytes_per_second
            assert after == pytest.approx(before, rel=0.03)
        for port in desk.use(now).ports:
            assert port.reserved_bytes_per_second <= port.bytes_per_second + 1
        for lease in leases:
            moved = told[lease.lease_id].allowed_bytes_per_second * eagerness[lease.lease_id] / 4
            sent[lease.lease_id] = min(float(lease.num_bytes), sent[lease.lease_id] + moved)
            desk.progress(lease.lease_id, round(sent[lease.lease_id]), now + 0.25)
        tick += 1
    use = desk.use(tick / 4)
    assert (desk.num_leases, use.num_released, use.num_reserved) == (0, len(chosen), len(chosen))
    assert all(port.reserved_bytes_per_second == port.num_leases == 0 for port in use.ports)


def test_a_window_that_begins_is_told() -> None:
    """Before it the lease holds nothing; progress makes it begin at once."""
    desk = desk_of()
    lease_id, pace = desk.reserve("r0", ask(90 * MB, 30 * MB, start_in_s=2.0), 0.0)
    assert pace.reserved_bytes_per_second == 0.0
    assert desk.changes(1.0) == {}
    desk.progress(lease_id, 0, 1.5)
    assert ids(desk, 1.5) == {"r0": [lease_id]}
    assert desk.use(1.5).leases[0].pace.reserved_bytes_per_second == 30 * MB


def test_a_router_that_leaves_gives_all_back() -> None:
    """Its leases, and the workers that only it saw."""
    desk = desk_of()
    desk.observe("r1", sight(("p2", "d0")), 0.0)
    desk.reserve("r1", ask(90 * MB, 30 * MB, ("p2", "d0")), 0.0)
    desk.reserve("r1", ask(90 * MB, 30 * MB), 0.0)
    desk.leave("r1", 0.5)
    assert desk.num_leases == 0
    assert "p2" not in {port.worker for port in desk.use(0.5).ports}
    assert desk.use(0.5).num_released == 2


def test_a_worker_that_no_router_sees_is_forgotten() -> None:
    """As long as one of them sees it, it stays."""
    desk = desk_of()
    desk.observe("r1", sight(("p0", "d0")), 0.0)
    desk.reserve("r0", ask(90 * MB, 30 * MB, ("p1", "d0")), 0.0)
    desk.observe("r0", sight(("p0", "d1")), 0.5)
    assert {port.worker for port in desk.use(0.5).ports} == {"p0", "d0", "d1"}
    assert desk.num_leases == 0
    with pytest.raises(PlanRefused):
        desk.reserve("r0", ask(MB, MB, ("p1", "d0")), 0.5)


def test_ports_have_what_their_best_link_carried_and_pairs_what_was_measured() -> None:
    """A measured rate counts for its pair even where it is lower, for a port only where it is greater."""
    desk = desk_of()
    links = (PairSight("p0", "d0", 100e6, 40e6), PairSight("p0", "d1", 80e6, 120e6), PairSight("p1", "d1", 0.0, 0.0))
    desk.observe("r0", NetworkSight(links), 0.0)
    rates = {(port.worker, port.direction): port.bytes_per_second for port in desk.use(0.0).ports}
    assert rates["p0", Direction.EGRESS] == 120 * MB
    assert rates["d0", Direction.INGRESS] == 100 * MB
    _, pace = desk.reserve("r0", ask(90 * MB, 90 * MB), 0.0)
    assert pace.allowed_bytes_per_second == 40 * MB


def test_an_operators_rate_stands_for_ports_and_pairs() -> None:
    """Whatever was tested or measured, or not even that."""
    desk = desk_of(fixed=10 * MB)
    desk.observe("r0", sight(tested=0.0), 0.0)
    assert {port.bytes_per_second for port in desk.use(0.0).ports} == {10 * MB}
    _, pace = desk.reserve("r0", ask(90 * MB, 90 * MB), 0.0)
    assert pace.allowed_bytes_per_second == 10 * MB


def test_use_shows_ports_leases_and_counts() -> None:
    """What was achieved is what was acknowledged: of a lease since its first report, of a port in the last two seconds."""
    desk = desk_of(max_leases=1)
    lease_id, _ = desk.reserve("r0", ask(90 * MB, 30 * MB), 0.0)
    with pytest.raises(Overloaded):
        desk.reserve("r0", ask(90 * MB, 30 * MB), 0.0)
    with pytest.raises(PlanRefused):
        desk.reserve("r0", ask(90 * MB, 30 * MB, ("p9", "d0")), 0.0)
    desk.progress(lease_id, 0, 0.5)
    desk.progress(lease_id, 20 * MB, 1.5)
    desk.progress(77, 20 * MB, 1.5)
    use = desk.use(1.5)
    (lease,) = use.leases
    ports = {port.worker: port for port in use.ports}
    assert (lease.acknowledged_bytes, lease.achieved_bytes_per_second) == (20 * MB, 20 * MB)
    assert (ports["p0"].achieved_bytes_per_second, ports["d0"].num_leases) == (10 * MB, 1)
    assert ports["p0"].reserved_bytes_per_second == round(lease.pace.reserved_bytes_per_second)
    assert ports["p1"].allowed_bytes_per_second == 0
    assert (use.num_reserved, use.num_refused, use.num_released, desk.num_unknown) == (1, 2, 0, 1)
    desk.progress(lease_id, 90 * MB, 3.0)
    desk.release(lease_id, 3.0)
    assert (desk.use(3.0).num_released, desk.num_leases) == (1, 0)
    assert desk.use(6.0).ports[0].achieved_bytes_per_second == 0
