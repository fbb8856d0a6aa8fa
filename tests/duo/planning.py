"""A duo whose transfers are planned, and what must be true of it once its requests have ended."""

from __future__ import annotations

from typing import Any

from router.config import RoutingPolicy
from tests.support.duo import Duo, DuoOptions
from tests.support.in_process import InProcessPrefill
from tests.support.planned import own_reservations
from transfer.planner.network import NetworkUse

RATE = 1_000_000_000


def planned_duo(**options: Any) -> Duo:
    """Prompts are always shipped: none is read where it is decoded because that is cheaper."""
    usual = {
        "link_bytes_per_second": RATE,
        "reservations": own_reservations,
        "policy": RoutingPolicy.LEAST_LOADED,
    }
    return Duo(DuoOptions(**{**usual, **options}))


def use_of(duo: Duo) -> NetworkUse:
    """Ports, leases and counts of the duo's planner."""
    reservations = duo.fleet.reservations
    assert reservations is not None
    return reservations.use()


def client_of(duo: Duo, name: str = "prefill-0") -> InProcessPrefill:
    """The router's client of a prefill worker."""
    client = duo.fleet.prefills[name].client
    assert isinstance(client, InProcessPrefill)
    return client


def check_given_back(duo: Duo, num_reserved: int | None = None) -> None:
    """Nothing is held, every lease ended once and well, and nobody listens for reports any more."""
    use = use_of(duo)
    assert use.leases == ()
    assert use.num_released == use.num_reserved
    assert use.num_expired == 0
    if num_reserved is not None:
        assert use.num_reserved == num_reserved
    assert not any(client_of(duo, name).watchers for name in duo.fleet.prefills)
    assert not any(member.backlog_bytes for member in duo.fleet.prefills.values())
