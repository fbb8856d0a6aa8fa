"""Planners in the router's own process, for tests, under a clock of their own."""

from __future__ import annotations

from typing import NoReturn

from protocol.errors import PlanRefused
from router.reservations.own import OwnReservations
from tests.support.clock import FakeClock
from transfer.planner.desk import PlannerDesk
from transfer.planner.packet import PacketFabric
from transfer.planner.planner import TransferPlanner

OWNER = "router-1"


def planner_desk() -> PlannerDesk:
    """Packet links whose rates are what routers see."""
    return PlannerDesk(TransferPlanner(PacketFabric()))


def own_reservations(clock: FakeClock) -> OwnReservations:
    """A router that plans for itself."""
    return OwnReservations(planner_desk(), OWNER, clock)


class BrokenDesk(PlannerDesk):
    """Refuses whatever it is told."""

    def __init__(self) -> None:
        super().__init__(TransferPlanner(PacketFabric()))

    def _refuse(self, *_: object) -> NoReturn:
        raise PlanRefused("broken")

    observe = reserve = progress = release = leave = renew = changes = _refuse  # type: ignore[assignment]


def broken_reservations(clock: FakeClock) -> OwnReservations:
    """Nothing can be planned."""
    return OwnReservations(BrokenDesk(), OWNER, clock)
