"""What the router knows of the links between its workers: for its own choices, and for the planner. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from router.fleet.clients import DecodeClient, PrefillClient
from router.fleet.member import Member
from transfer.planner.network import NetworkSight, PairSight

ASSUMED_LINK_BYTES_PER_SECOND = 1e9
"""Of a link whose handshake brought no rate."""


class RateSource(StrEnum):
    """Where the rate of a link is from."""

    GIVEN = "given"
    MEASURED = "measured"
    SELF_TEST = "self-test"
    ASSUMED = "assumed"
    NO_LINK = "no link"


@dataclass(frozen=True, slots=True)
class LinkRate:
    """What a link moves; 0 without a link."""

    bytes_per_second: float
    source: RateSource


def link_rate(prefill: Member[PrefillClient], decode: str, given_bytes_per_second: int | None) -> LinkRate:
    """As an operator gave it, else as measured under load, else as the self-test found, else assumed."""
    reply = prefill.links.get(decode)
    if reply is None:
        return LinkRate(0.0, RateSource.NO_LINK)
    if given_bytes_per_second:
        return LinkRate(float(given_bytes_per_second), RateSource.GIVEN)
    if measured := prefill.measured_bytes_per_second(decode):
        return LinkRate(measured, RateSource.MEASURED)
    if reply.bytes_per_second:
        return LinkRate(reply.bytes_per_second, RateSource.SELF_TEST)
    return LinkRate(ASSUMED_LINK_BYTES_PER_SECOND, RateSource.ASSUMED)


def sight_of(prefills: Iterable[Member[PrefillClient]], decodes: Mapping[str, Member[DecodeClient]]) -> NetworkSight:
    """All links between workers that answer."""
    return NetworkSight(
        tuple(
            PairSight(prefill.name, name, reply.bytes_per_second, prefill.measured_bytes_per_second(name))
            for prefill in prefills
            if prefill.is_healthy
            for name, reply in prefill.links.items()
            if name in decodes and decodes[name].is_healthy
        )
    )
