"""Which planner a router asks: one of its own, one that it shares with other routers, or none."""

from __future__ import annotations

import secrets
from collections.abc import Callable

from router.config import RouterConfig
from router.reservations.contract import Reservations
from router.reservations.own import OwnReservations
from router.reservations.shared import SharedReservations
from transfer.planner.desk import PlannerDesk
from transfer.planner.packet import PacketFabric
from transfer.planner.planner import TransferPlanner


def reservations_of(config: RouterConfig, token: str, full_name_of: Callable[[str], str]) -> Reservations | None:
    """The planner at the config's `planner_target`, or one in this process if that is empty; None where transfers are not
    planned. Nothing is connected before the reservations are started.

    A planner elsewhere is shown `token`, and calls a worker what `full_name_of` makes of its name: one that no other cluster's
    worker has, and that all routers over the same workers agree on.
    """
    if not config.plans_transfers:
        return None
    owner = f"router-{secrets.token_hex(4)}"
    if config.planner_target:
        return SharedReservations(config.planner_target, owner, token, full_name_of)
    planner = TransferPlanner(PacketFabric(), config.link_bytes_per_second)
    return OwnReservations(PlannerDesk(planner), owner)
