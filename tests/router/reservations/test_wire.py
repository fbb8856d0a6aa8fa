"""Messages between routers and a planner: what is written is what is read, and what cannot be is refused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from protocol import kvferry_planner_pb2 as pb
from protocol.errors import BadRequest
from protocol.pace import Pace
from router.reservations.wire import (
    MAX_LISTED_LEASES,
    ask_from_wire,
    ask_to_wire,
    sight_from_wire,
    sight_to_wire,
    use_from_wire,
    use_to_wire,
)
from tests.router.reservations.planners import SIGHT
from transfer.planner.lease import Direction
from transfer.planner.network import LeaseUse, NetworkSight, NetworkUse, PortUse, TransferAsk

ASK = TransferAsk("request", "p0@1", "d0@2", 10**12, 3 * 10**9, 0.25)
LEASE = LeaseUse(2**52, "r0", "request", "p0@1", "d0@2", 10**12, 10**11, Pace(1.5, 2.5, True), 3.5, 4.5)
USE = NetworkUse((PortUse("d0@2", Direction.INGRESS, 9, 8, 7, 6, 5),), (LEASE,), 4, 3, 2, 1)


def test_values_cross_unchanged() -> None:
    """Asks, sights and the use of the network, the empty ones too."""
    assert ask_from_wire(ask_to_wire(7, ASK)) == ASK
    for sight in (SIGHT, NetworkSight()):
        assert sight_from_wire(sight_to_wire(sight)) == sight
    for use in (USE, NetworkUse()):
        assert use_from_wire(use_to_wire(use)) == use


def test_of_very_many_leases_the_oldest_cross() -> None:
    """So that a message has a bound; what the ports say counts all of them."""
    many = tuple(replace(LEASE, lease_id=number) for number in range(MAX_LISTED_LEASES + 5))
    assert use_from_wire(use_to_wire(replace(USE, leases=many))) == replace(USE, leases=many[:MAX_LISTED_LEASES])


def test_what_makes_no_sense_on_the_wire_is_an_ask_without_bytes() -> None:
    """Negative counts have no message; as 0 the planner refuses them with its own words."""
    crossed = ask_from_wire(ask_to_wire(7, replace(ASK, num_bytes=-1, produced_bytes_per_second=-5)))
    assert (crossed.num_bytes, crossed.produced_bytes_per_second) == (0, 0)


def test_what_cannot_be_is_refused() -> None:
    """A start that is no time, a pair without a name or with a rate that is none, a direction that there is not."""
    bad_ask, bad_use = ask_to_wire(7, ASK), use_to_wire(USE)
    bad_ask.start_in_s = float("nan")
    with pytest.raises(BadRequest, match="no time"):
        ask_from_wire(bad_ask)
    for pair in (pb.PairSight(source="p0"), pb.PairSight(source="p", destination="d", measured_bytes_per_second=-1.0)):
        with pytest.raises(BadRequest):
            sight_from_wire(pb.NetworkSight(pairs=[pair]))
    bad_use.ports[0].direction = "sideways"
    with pytest.raises(BadRequest, match="sideways"):
        use_from_wire(bad_use)
