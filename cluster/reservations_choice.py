"""Which planner a router asks: one of its own, one that it shares with other routers, or none."""

from __future__ import annotations

import secrets

from router.config import RouterConfig
from router.reservations.contract import Reservations
from router.reservations.own import OwnReservations
from router.reservations.shared import SharedReservations
from transfer.planner.desk import PlannerDesk
from transfer.planner.packet import PacketFabric
from transfer.planner.planner import TransferPlanner


def reservations_of(config: RouterConfig, token: str) -> Reservations | None:
    """The planner at the config's `planner_target`, which is shown `token`, or one in this process if that is empty; None where
    transfers are not planned. Nothing is connected before the reservations are started.
    """
    if not config.plans_transfers:
        return None
    owner = f"router-{secrets.token_hex(4)}"
    if config.planner_target:
        return SharedReservations(config.planner_target, owner, token)
    planner = TransferPlanner(PacketFabric(), config.link_bytes_per_second)
    return OwnReservations(PlannerDesk(planner), owner)
