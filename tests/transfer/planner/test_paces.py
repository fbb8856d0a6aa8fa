"""What every transfer may send at one moment."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.pace import Pace
from tests.transfer.planner.demands import MB, egress, ingress
from transfer.planner.lease import Pair
from transfer.planner.paces import MIN_SHARE, Claim, least_pace, paces

SOURCES, DESTINATIONS = [f"p{index}" for index in range(4)], [f"d{index}" for index in range(3)]


def claim(lease_id: int, reserved: int, way: tuple[str, str] = ("p0", "d0"), rate: int = 100 * MB) -> Claim:
    """A lease over ports of 100 MB/s."""
    return Claim(lease_id, Pair(egress(way[0]), ingress(way[1]), rate), reserved)


def test_a_lease_alone_is_allowed_the_whole_way() -> None:
    """It is not shared, in its window and outside."""
    for reserved in (30 * MB, 0):
        pace = paces([claim(1, reserved)], lends_idle=True)[1]
        assert pace.allowed_bytes_per_second == 100 * MB
        assert pace.reserved_bytes_per_second == reserved
        assert not pace.is_shared


def test_two_leases_over_one_port_share_as_reserved() -> None:
    """What is idle is split in the same proportion."""
    found = paces([claim(1, 20 * MB, ("p0", "d0")), claim(2, 60 * MB, ("p1", "d0"))], lends_idle=True)
    assert [found[each].allowed_bytes_per_second for each in (1, 2)] == pytest.approx([25 * MB, 75 * MB])
    assert found[1].is_shared
    assert found[2].is_shared


def test_what_one_cannot_use_others_borrow() -> None:
    """The way of the first carries less than its part; the second takes the rest of their port."""
    found = paces([claim(1, 10 * MB, rate=10 * MB), claim(2, 10 * MB, ("p1", "d0"))], lends_idle=True)
    assert [found[each].allowed_bytes_per_second for each in (1, 2)] == pytest.approx([10 * MB, 90 * MB])


def test_leases_on_other_ports_are_not_shared() -> None:
    """Two pairs without a common worker do not know each other."""
    found = paces([claim(1, 10 * MB, ("p0", "d0")), claim(2, 10 * MB, ("p1", "d1"))], lends_idle=True)
    assert [found[each].allowed_bytes_per_second for each in (1, 2)] == [100 * MB, 100 * MB]
    assert not any(pace.is_shared for pace in found.values())


def test_who_waits_gets_the_least_allowance_beside_a_reservation() -> None:
    """So that a late transfer moves on; who reserved keeps all that the port has."""
    found = paces([claim(1, 10 * MB), claim(2, 0, ("p1", "d0"))], lends_idle=True)
    assert found[1].allowed_bytes_per_second == 100 * MB
    assert found[2].allowed_bytes_per_second == MIN_SHARE * 100 * MB


def test_a_port_measured_narrower_than_what_it_sold_gives_less_to_all() -> None:
    """In proportion, and a pace holds no more than it allows."""
    narrow = Pair(egress("p0", 50 * MB), ingress("d0"), 100 * MB)
    found = paces([Claim(1, narrow, 80 * MB), Claim(2, narrow, 20 * MB)], lends_idle=True)
    assert [found[each].allowed_bytes_per_second for each in (1, 2)] == pytest.approx([40 * MB, 10 * MB])
    assert found[1].reserved_bytes_per_second == found[1].allowed_bytes_per_second


def test_a_circuit_carries_its_window_and_nothing_else() -> None:
    """Outside its window a lease may send nothing, alone or not."""
    found = paces([claim(1, 100 * MB), claim(2, 0, ("p1", "d1"))], lends_idle=False)
    assert (found[1].allowed_bytes_per_second, found[1].is_shared) == (100 * MB, False)
    assert (found[2].allowed_bytes_per_second, found[2].is_shared) == (0.0, True)


ways = st.tuples(st.sampled_from(SOURCES), st.sampled_from(DESTINATIONS))


@given(
    st.lists(st.tuples(ways, st.integers(0, 40)), max_size=12), st.lists(st.integers(1, 90), min_size=12, max_size=12)
)
def test_ports_are_filled_and_never_exceeded(chosen: list[tuple[tuple[str, str], int]], carried: list[int]) -> None:
    """But for the least allowances; what was sold is allowed; nobody could have more without another having less."""
    rates: dict[str | tuple[str, str], int] = dict(
        zip(((source, to) for source in SOURCES for to in DESTINATIONS), carried, strict=True)
    )
    has: dict[str | tuple[str, str], int] = {**dict.fromkeys((*SOURCES, *DESTINATIONS), 100), **rates}
    left, claims = dict(has), []
    for index, (way, wanted) in enumerate(chosen):
        reserved = min(wanted, *(left[each] for each in (*way, way)))
        for resource in (*way, way):
            left[resource] -= reserved
        claims.append(Claim(index, Pair(egress(way[0], 100), ingress(way[1], 100), rates[way]), reserved))
    found = paces(claims, lends_idle=True)
    assert found == paces(claims, lends_idle=True)
    full = set()
    for resource, rate in has.items():
        on = [each for each in claims if resource in (*each.pair.names, each.pair.names)]
        inside = sum(found[each.lease_id].allowed_bytes_per_second for each in on if each.reserved_bytes_per_second)
        total = sum(found[each.lease_id].allowed_bytes_per_second for each in on)
        num_waiting = sum(not each.reserved_bytes_per_second for each in on)
        assert inside <= rate * (1 + 1e-9)
        assert total <= rate * (1 + 1e-9) + num_waiting * MIN_SHARE * 100
        if total >= rate * (1 - 1e-9):
            full.add(resource)
    for each in claims:
        assert found[each.lease_id].allowed_bytes_per_second >= each.reserved_bytes_per_second * (1 - 1e-9)
        assert full & {*each.pair.names, each.pair.names}


def first_pace(claims: list[Claim], *, lends_idle: bool = True) -> Pace:
    """What the first of these is told before all have been looked at."""
    first, *others = claims
    near = [one for one in others if set(one.pair.names) & set(first.pair.names)]
    return least_pace(first, len(near), [one for one in near if one.reserved_bytes_per_second], lends_idle)


@given(st.lists(st.tuples(ways, st.integers(0, 20)), min_size=1, max_size=12), st.integers(1, 100), st.booleans())
def test_a_first_pace_is_never_more_than_the_pace(
    chosen: list[tuple[tuple[str, str], int]], carried: int, lends_idle: bool
) -> None:
    """It knows whether a port is shared, and what is held, as far as the ports have it."""
    claims = [claim(index, MB * reserved, way, MB * carried) for index, (way, reserved) in enumerate(chosen)]
    exact, first = paces(claims, lends_idle)[0], first_pace(claims, lends_idle=lends_idle)
    assert first.allowed_bytes_per_second <= exact.allowed_bytes_per_second * (1 + 1e-9)
    assert first.is_shared == exact.is_shared


@given(st.lists(st.integers(0, 20), min_size=1, max_size=12), st.integers(1, 100))
def test_a_first_pace_on_one_way_is_the_pace(reserved: list[int], carried: int) -> None:
    """Where all go from the same worker to the same."""
    claims = [claim(index, MB * each, rate=MB * carried) for index, each in enumerate(reserved)]
    exact, first = paces(claims, lends_idle=True)[0], first_pace(claims)
    assert first.allowed_bytes_per_second == pytest.approx(exact.allowed_bytes_per_second)
    assert first.reserved_bytes_per_second == pytest.approx(exact.reserved_bytes_per_second)
