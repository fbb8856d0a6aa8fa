"""Builders: ports, pairs and demands in round numbers."""

from __future__ import annotations

from transfer.planner.lease import Direction, Pair, Port, TransferDemand

MB = 1_000_000
GIB = 1 << 30


def egress(name: str, rate: int = 100 * MB) -> Port:
    """A source's port."""
    return Port(name, Direction.EGRESS, rate)


def ingress(name: str, rate: int = 100 * MB) -> Port:
    """A destination's port."""
    return Port(name, Direction.INGRESS, rate)


def pair(source: str = "p0", destination: str = "d0", rate: int = 100 * MB) -> Pair:
    """A way whose ports and middle all carry `rate`."""
    return Pair(egress(source, rate), ingress(destination, rate), rate)


def demand(
    num_bytes: int, rate: int = 1000 * MB, start: float = 0.0, way: tuple[str, str] = ("p0", "d0"), owner: str = "r0"
) -> TransferDemand:
    """A demand of `num_bytes` produced at `rate` from `start` on."""
    return TransferDemand("request", way[0], way[1], num_bytes, rate, start, owner)
