"""Which pair a fleet chooses for a request: never one that does not answer, and the link that is ready first."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import NotReady
from router.config import RoutingPolicy
from router.fleet.fleet import Fleet
from router.fleet.member import MAX_MISSED_PINGS
from router.fleet.question import RoutingRules
from scheduling.pair_cost import Pair
from tests.router.fleet.members import link, member, request

PREFILLS = ["p0", "p1", "p2"]
DECODES = ["d0", "d1", "d2"]
NOBODY: frozenset[str] = frozenset()


def fleet_of(prefills: list[str], decodes: list[str], policy: RoutingPolicy = RoutingPolicy.JOINT) -> Fleet:
    """All healthy and all linked."""
    fleet = Fleet(rules=RoutingRules(policy=policy))
    fleet.prefills = {name: member(name, "prefill") for name in prefills}
    fleet.decodes = {name: member(name, "decode") for name in decodes}
    for one in fleet.prefills.values():
        for other in fleet.decodes.values():
            link(one, other)
    return fleet


def die(fleet: Fleet, name: str) -> None:
    """It has missed as many pings as it may."""
    (fleet.prefills | fleet.decodes)[name].num_missed_pings = MAX_MISSED_PINGS


@given(
    st.sampled_from(RoutingPolicy),
    st.sets(st.sampled_from(PREFILLS + DECODES)),
    st.sets(st.sampled_from(PREFILLS + DECODES)),
    st.sets(st.tuples(st.sampled_from(PREFILLS), st.sampled_from(DECODES))),
)
def test_never_a_dead_worker(
    policy: RoutingPolicy, dead: set[str], tried: set[str], unlinked: set[tuple[str, str]]
) -> None:
    """Under no rule, however idle it is and busy the others are; nor one that is excluded, nor a pair without a link."""
    fleet = fleet_of(PREFILLS, DECODES, policy)
    for name in PREFILLS + DECODES:
        if name in dead:
            die(fleet, name)
        else:
            busy = (fleet.prefills | fleet.decodes)[name]
            busy.num_queued_tokens, busy.num_active, busy.num_held_tokens = 100_000, 50, 12_000
    for prefill, decode in unlinked:
        del fleet.prefills[prefill].links[decode]
    usable = set(PREFILLS + DECODES) - dead - tried
    if not usable & set(DECODES):
        with pytest.raises(NotReady):
            fleet.choose(request(), frozenset(tried))
        return
    pair = fleet.choose(request(), frozenset(tried))
    assert pair.decode in usable
    if pair.prefill is not None:
        assert pair.prefill in usable
        assert (pair.prefill, pair.decode) not in unlinked


def test_a_worker_that_dies_between_two_requests_is_not_chosen_again() -> None:
    """And is once it answers: what is remembered of it does not outlive its health."""
    fleet = fleet_of(["p0", "p1"], ["d0"])
    fleet.prefills["p1"].num_queued_tokens = 50
    assert fleet.choose(request(), NOBODY) == Pair("p0", "d0")
    die(fleet, "p0")
    assert fleet.choose(request(), NOBODY) == Pair("p1", "d0")
    fleet.prefills["p0"].num_missed_pings = 0
    assert fleet.choose(request(), NOBODY) == Pair("p0", "d0")


def test_a_near_idle_slow_link_beats_a_congested_fast_one_until_it_has_drained() -> None:
    """With the same fleet, as the books change."""
    fleet = fleet_of(["p"], [])
    prefill = fleet.prefills["p"]
    fleet.decodes = {name: member(name, "decode") for name in ("fast", "slow")}
    for name, rate in (("fast", 1e9), ("slow", 1e7)):
        fleet.decodes[name].num_active = 1000  # nobody reads the prompt itself
        link(prefill, fleet.decodes[name], rate)
    prefill.backlog_bytes["fast"] = 8e9
    assert fleet.choose(request(), NOBODY) == Pair("p", "slow")
    prefill.backlog_bytes["fast"] = 1e6
    prefill.backlog_bytes["slow"] = 1e9
    assert fleet.choose(request(), NOBODY) == Pair("p", "fast")
