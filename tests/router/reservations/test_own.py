"""A planner in the router's own process, under a fake clock."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from protocol.errors import PlanRefused
from protocol.pace import Pace
from router.reservations.own import OwnReservations
from tests.support.clock import FakeClock
from tests.support.planned import BrokenDesk, own_reservations
from transfer.planner.network import NetworkSight, NetworkUse, PairSight, TransferAsk

RATE = 1_000_000
SIGHT = NetworkSight((PairSight("prefill-0", "decode-0", RATE, 0.0), PairSight("prefill-1", "decode-0", RATE, 0.0)))
NOTHING = NetworkUse()


@dataclass
class Told:
    """A planner, its clock, and the paces that it told."""

    clock: FakeClock = field(default_factory=FakeClock)
    paces: list[tuple[int, Pace]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.own = own_reservations(self.clock)

    async def start(self) -> OwnReservations:
        """Serves; it sees two prefill workers and a decode worker."""
        await self.own.start(lambda lease_id, pace: self.paces.append((lease_id, pace)))
        self.own.observe(SIGHT)
        return self.own


def _ask(source: str = "prefill-0", num_bytes: int = RATE, rate: int = RATE // 4) -> TransferAsk:
    return TransferAsk(f"of {source}", source, "decode-0", num_bytes, rate, 0.0)


async def _turns(number: int = 5) -> None:
    for _ in range(number):
        await asyncio.sleep(0)


async def test_a_lease_has_its_pace_at_once() -> None:
    """Alone it holds what it is produced at, and may use more."""
    own = await Told().start()
    pace = (await own.reserve(_ask())).pace
    assert pace.reserved_bytes_per_second >= RATE // 4
    assert pace.allowed_bytes_per_second > pace.reserved_bytes_per_second
    assert not pace.is_shared
    await own.close()


async def test_who_shares_a_port_is_told_soon() -> None:
    """The first hears of the second, and that it is alone again, without waiting for the timer."""
    told = Told()
    own = await told.start()
    first = await own.reserve(_ask())
    second = await own.reserve(_ask("prefill-1"))
    await _turns()
    assert [(lease_id, pace.is_shared) for lease_id, pace in told.paces] == [(first.lease_id, True)]
    own.release(second.lease_id)
    await _turns()
    assert [(lease_id, pace.is_shared) for lease_id, pace in told.paces[1:]] == [(first.lease_id, False)]
    await own.close()


async def test_leases_of_a_router_that_asks_for_changes_do_not_expire() -> None:
    """However long they last: who asks renews."""
    told = Told()
    own = await told.start()
    await own.reserve(_ask(num_bytes=100 * RATE))
    for _ in range(30):
        told.clock.advance(5.0)
        own.tell_changes()
    assert [lease.request_id for lease in own.use().leases] == ["of prefill-0"]
    assert own.use().num_expired == 0
    await own.close()


async def test_what_is_given_back_is_free() -> None:
    """Once or twice, and with progress for a lease that is gone."""
    own = await Told().start()
    lease_id = (await own.reserve(_ask())).lease_id
    own.progress(lease_id, 1000)
    assert own.use().leases[0].acknowledged_bytes == 1000
    own.release(lease_id)
    own.release(lease_id)
    own.progress(lease_id, 2000)
    use = own.use()
    assert (use.leases, use.num_reserved, use.num_released) == ((), 1, 1)
    assert all(port.num_leases == port.reserved_bytes_per_second == 0 for port in use.ports)
    await own.close()


async def test_what_landed_last_counts_though_its_lease_is_given_back_at_once() -> None:
    """The ports have carried it; what landed of a lease that is gone counts for nobody."""
    own = await Told().start()
    lease_id = (await own.reserve(_ask())).lease_id
    own.progress(lease_id, 0)
    own.progress(lease_id, 1000)
    own.release(lease_id)
    own.progress(lease_id, 2000)
    assert {port.worker: port.achieved_bytes_per_second for port in own.use().ports} == {
        "prefill-0": 500,
        "prefill-1": 0,
        "decode-0": 500,
    }
    await own.close()


async def test_no_timer_outlives_the_leases() -> None:
    """Nothing is scheduled while nothing is held: a router that is idle does nothing."""
    own = await Told().start()
    loop = asyncio.get_running_loop()
    scheduled: list[float] = []
    call_later = loop.call_later

    def noted(delay: float, *arguments: object) -> asyncio.TimerHandle:
        scheduled.append(delay)
        return call_later(delay, *arguments)  # type: ignore[arg-type]

    loop.call_later = noted  # type: ignore[method-assign, assignment]
    first = await own.reserve(_ask())
    own.release(first.lease_id)
    await _turns()
    assert scheduled == [0.0]
    own.observe(SIGHT)
    await own.close()
    assert scheduled == [0.0]


async def test_closing_gives_back_all() -> None:
    """Nothing is told afterwards."""
    told = Told()
    own = await told.start()
    await own.reserve(_ask())
    await own.reserve(_ask("prefill-1"))
    await own.close()
    await _turns()
    assert (own.use().leases, own.use().num_released) == ((), 2)
    assert told.paces == []


async def test_an_unknown_worker_is_refused() -> None:
    """And counted."""
    own = await Told().start()
    with pytest.raises(PlanRefused):
        await own.reserve(_ask("prefill-9"))
    assert own.use().num_refused == 1
    await own.close()


async def test_a_planner_that_refuses_everything_raises_only_where_it_is_asked() -> None:
    """Reports, releases and the timer go on; only `reserve` tells."""
    own = OwnReservations(BrokenDesk(), "router-1", FakeClock())
    await own.start(lambda lease_id, pace: None)
    own.observe(SIGHT)
    own.progress(1, 1)
    own.release(1)
    own.tell_changes()
    with pytest.raises(PlanRefused, match="broken"):
        await own.reserve(_ask())
    assert own.use() == NOTHING
    await own.close()
