"""What several routers see of the network, put together: one rate for every port and every pair. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from transfer.planner.lease import Direction, Port
from transfer.planner.network import NetworkSight


@dataclass(frozen=True, slots=True)
class SeenNetwork:
    """All workers that somebody sees, the ports whose rate is known, and the rates of pairs in bytes per second."""

    workers: frozenset[str]
    ports: tuple[Port, ...]
    pairs: dict[tuple[str, str], float]


def seen_network(sights: Iterable[NetworkSight], fixed_bytes_per_second: int | None) -> SeenNetwork:
    """Puts sights together; of a pair that several see, the last one counts, unless it knows no rate.

    A pair carries what was measured, or else what its self-test found. A port has at least what any of its pairs has carried,
    in a self-test or later. `fixed_bytes_per_second` stands for all ports. A port without any rate is left out.
    """
    pairs: dict[tuple[str, str], float] = {}
    rates: dict[tuple[Direction, str], float] = {}
    for sight in sights:
        for each in sight.pairs:
            names = each.source, each.destination
            pairs[names] = each.measured_bytes_per_second or each.tested_bytes_per_second or pairs.get(names, 0.0)
            greatest = max(each.measured_bytes_per_second, each.tested_bytes_per_second)
            for key in ((Direction.EGRESS, each.source), (Direction.INGRESS, each.destination)):
                rates[key] = max(rates.get(key, 0.0), greatest)
    ports = []
    for (direction, name), rate in rates.items():
        bytes_per_second = fixed_bytes_per_second or int(rate)
        if bytes_per_second >= 1:
            ports.append(Port(name, direction, bytes_per_second))
    return SeenNetwork(frozenset(name for names in pairs for name in names), tuple(ports), pairs)
