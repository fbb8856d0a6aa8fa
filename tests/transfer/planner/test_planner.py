"""The planner that routers call, over both fabrics."""

from __future__ import annotations

import pytest

from protocol.errors import PlanRefused
from tests.transfer.planner.demands import MB, demand, egress, ingress
from transfer.planner.circuit import CircuitFabric
from transfer.planner.circuit_search import CircuitRules
from transfer.planner.fabric import Fabric
from transfer.planner.packet import PacketFabric
from transfer.planner.planner import TransferPlanner

FABRICS: list[Fabric] = [PacketFabric(max_share=1.0), CircuitFabric(CircuitRules(0.0))]


def planner_of(fabric: Fabric, fixed: int | None = None) -> TransferPlanner:
    """Two sources and two destinations of 100 MB/s each."""
    planner = TransferPlanner(fabric, fixed)
    for port in (egress("p0"), egress("p1"), ingress("d0"), ingress("d1")):
        planner.set_port(port)
    return planner


@pytest.fixture(params=FABRICS, ids=["packet", "circuit"])
def planner(request: pytest.FixtureRequest) -> TransferPlanner:
    """Over each fabric in turn."""
    return planner_of(request.param)


def test_a_lease_lives_from_its_reservation_to_its_last_byte(planner: TransferPlanner) -> None:
    """Reserved, renewed by progress, ended by the last byte; then the next one starts at once."""
    lease = planner.reserve(demand(100 * MB), 0.0)
    assert list(planner.leases.values()) == [lease]
    assert planner.propose(demand(100 * MB, way=("p1", "d0")), 0.5).ready == 1.0
    moved = planner.progress(lease.lease_id, 50 * MB, 0.5)
    assert moved is not None
    assert moved.remaining_bytes == 50 * MB
    assert planner.progress(lease.lease_id, 100 * MB, 0.8) is None
    assert not planner.leases
    assert planner.propose(demand(100 * MB, way=("p1", "d0")), 0.8).ready == 0.8


def test_a_pair_carries_what_was_measured(planner: TransferPlanner) -> None:
    """Until then, what its ports do; a measurement of nothing says nothing."""
    assert planner.propose(demand(100 * MB), 0.0).predicted_end == 1.0
    planner.measure("p0", "d0", 25e6)
    planner.measure("p0", "d0", 0.0)
    assert planner.propose(demand(100 * MB), 0.0).predicted_end == 4.0


def test_an_operator_overrides_what_was_measured() -> None:
    """A fixed rate of ports and pairs stands; one that is no rate is refused."""
    planner = planner_of(FABRICS[0], 50 * MB)
    assert {port.bytes_per_second for port in planner.ports} == {50 * MB}
    planner.measure("p0", "d0", 25e6)
    assert planner.propose(demand(100 * MB), 0.0).predicted_end == 2.0
    with pytest.raises(PlanRefused):
        planner_of(FABRICS[0], 0)


def test_a_worker_without_a_port_is_refused(planner: TransferPlanner) -> None:
    """The error says which port is missing."""
    with pytest.raises(PlanRefused, match="egress port of p9"):
        planner.propose(demand(MB, way=("p9", "d0")), 0.0)


def test_a_worker_that_is_gone_frees_the_ports_of_its_peers(planner: TransferPlanner) -> None:
    """Its leases end with it, those of others do not."""
    planner.reserve(demand(100 * MB, way=("p0", "d0")), 0.0)
    other = planner.reserve(demand(100 * MB, way=("p1", "d1")), 0.0)
    planner.forget_worker("p0", 0.2)
    assert list(planner.leases.values()) == [other]
    assert planner.propose(demand(100 * MB, start=0.2, way=("p1", "d0")), 0.2).predicted_end > other.predicted_end
    with pytest.raises(PlanRefused):
        planner.pair("p0", "d0")


def test_first_progress_begins_a_lease_that_was_planned_for_later(planner: TransferPlanner) -> None:
    """The prefill runs already: the window is moved to now."""
    lease = planner.reserve(demand(100 * MB, start=5.0), 0.0)
    assert lease.bytes_per_second(1.0) == 0
    begun = planner.progress(lease.lease_id, 0, 1.0)
    assert begun is not None
    assert begun.bytes_per_second(1.0) == 100 * MB
    assert begun.predicted_end == pytest.approx(2.0)


def test_circuits_lend_nothing_and_links_do() -> None:
    """Outside its window a transfer may use what is idle on a link; on a circuit it may not send."""
    allowed = []
    for fabric in FABRICS:
        planner = planner_of(fabric)
        lease = planner.reserve(demand(100 * MB, start=5.0), 0.0)
        pace = planner.paces(0.0)[lease.lease_id]
        allowed.append((pace.allowed_bytes_per_second, pace.is_shared))
        assert planner.paces(5.5)[lease.lease_id].reserved_bytes_per_second == 100 * MB
    assert allowed == [(100 * MB, False), (0.0, True)]


def test_a_dead_router_is_named_with_its_leases(planner: TransferPlanner) -> None:
    """Renewed leases stay; the others are told, so that somebody can say so."""
    dead = planner.reserve(demand(100 * MB, owner="dead"), 0.0)
    alive = planner.reserve(demand(100 * MB, owner="alive"), 0.0)
    planner.renew("alive", 9.0)
    assert planner.expire(10.0) == (dead,)
    assert list(planner.leases) == [alive.lease_id]


def test_a_prefill_that_slips_moves_its_lease(planner: TransferPlanner) -> None:
    """By the same id, to the new time."""
    lease = planner.reserve(demand(100 * MB), 0.0)
    moved = planner.reschedule(lease.lease_id, 2.0, 0.0)
    assert moved.lease_id == lease.lease_id
    assert moved.predicted_end == pytest.approx(3.0)
    planner.release(lease.lease_id, 0.0)
    assert not planner.leases
