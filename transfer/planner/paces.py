"""What every transfer may send at one moment: what it reserved, and its part of what is idle. Pure; no clock.

Weighted max-min fairness ("water-filling") over ports and ways, in two rounds: first the leases inside their windows, each
weighted by what it reserved; then those outside, alike, over what is then still idle. What a lease is allowed in the first
round is at least what it reserved as long as no port is oversold; on a port that was measured narrower than what it sold, all
get less in proportion. A lease outside its windows may always send a little (`MIN_SHARE` of its narrower port), so that a late
transfer does not stall for ever: only by these allowances can a port be allowed more than it has.

Knows no fabric but one thing: whether it lends. A circuit carries nothing outside its window, and all of it inside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from protocol.pace import Pace
from transfer.planner.lease import Pair

MIN_SHARE = 1 / 64
"""The least part of a port that a transfer may use, and the least that is worth a window of its own."""
_ROUNDING = 1e-12


@dataclass(frozen=True, slots=True)
class Claim:
    """A lease at one moment: its way, with the rates that ports have now, and what is held for it; 0 outside its windows."""

    lease_id: int
    pair: Pair
    reserved_bytes_per_second: int


@dataclass(slots=True)
class _Share:
    """A lease on its three resources (egress, ingress, way), by index."""

    claim: Claim
    indices: tuple[int, int, int]
    weight: int


def paces(claims: Sequence[Claim], lends_idle: bool) -> dict[int, Pace]:
    """The pace of every lease, by its id. The same claims in the same order give the same answer.

    `is_shared` is whether another lease is on either port. Where nothing is lent (`lends_idle` is False: circuits) a lease is
    allowed what it reserved, 0 outside its windows, and then it is `is_shared` as well: it must not send.
    """
    shares, idle = _shares(claims)
    num_on = [0] * len(idle)
    for share in shares:
        for index in share.indices:
            num_on[index] += 1
    if lends_idle:
        allowed = _filled([share for share in shares if share.weight], idle)
        waiting = [share for share in shares if not share.weight]
        for share in waiting:
            share.weight = 1
        for lease_id, rate in _filled(waiting, idle).items():
            allowed[lease_id] = rate
        for share in waiting:
            pair = share.claim.pair
            least = MIN_SHARE * min(pair.egress.bytes_per_second, pair.ingress.bytes_per_second)
            allowed[share.claim.lease_id] = max(allowed[share.claim.lease_id], least)
    else:
        allowed = {claim.lease_id: float(claim.reserved_bytes_per_second) for claim in claims}
    found = {}
    for share in shares:
        claim, rate = share.claim, allowed[share.claim.lease_id]
        is_shared = num_on[share.indices[0]] > 1 or num_on[share.indices[1]] > 1
        may_not_send = not lends_idle and not claim.reserved_bytes_per_second
        found[claim.lease_id] = Pace(min(claim.reserved_bytes_per_second, rate), rate, is_shared or may_not_send)
    return found


def _shares(claims: Sequence[Claim]) -> tuple[list[_Share], list[float]]:
    """The claims with the indices of their resources, and what every resource has."""
    index_of: dict[tuple[str, ...], int] = {}
    idle: list[float] = []
    shares = []
    for claim in claims:
        pair = claim.pair
        source, destination = pair.names
        rates = (pair.egress.bytes_per_second, pair.ingress.bytes_per_second, pair.bytes_per_second)
        keys = (("egress", source), ("ingress", destination), (source, "to", destination))
        found = []
        for key, rate in zip(keys, rates, strict=True):
            index = index_of.setdefault(key, len(idle))
            if index == len(idle):
                idle.append(rate)
            found.append(index)
        shares.append(_Share(claim, (found[0], found[1], found[2]), claim.reserved_bytes_per_second))
    return shares, idle


def _filled(shares: Sequence[_Share], idle: list[float]) -> dict[int, float]:
    """Weighted max-min rates by lease id; takes them from `idle`.

    All rates rise together, each by its weight, until a resource is full: who is on it stays, the others rise on. How high a
    resource lets its leases rise only grows as others of them stay behind, so that a heap with old levels finds the next one.
    """
    members: dict[int, list[_Share]] = {}
    weights: dict[int, int] = {}
    for share in shares:
        for index in share.indices:
            members.setdefault(index, []).append(share)
            weights[index] = weights.get(index, 0) + share.weight
    levels = [(idle[index] / weight, index) for index, weight in weights.items()]
    heapify(levels)
    allowed: dict[int, float] = {}
    while levels:
        level, index = heappop(levels)
        if not weights[index]:
            continue
        now_level = max(0.0, idle[index]) / weights[index]
        if now_level > level * (1.0 + _ROUNDING):
            heappush(levels, (now_level, index))
            continue
        for share in members[index]:
            if share.claim.lease_id not in allowed:
                rate = allowed[share.claim.lease_id] = share.weight * level
                for each in share.indices:
                    idle[each] = max(0.0, idle[each] - rate)
                    weights[each] -= share.weight
    return allowed
