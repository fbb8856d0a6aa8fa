"""What every transfer may send at one moment: what it reserved, and its part of what is idle. Pure; no clock.

Weighted max-min fairness ("water-filling") over ports and ways, in two rounds: first the leases inside their windows, each
weighted by what it reserved; then those outside, alike, over what is then still idle. What a lease is allowed in the first
round is at least what it reserved as long as no port is oversold; on a port that was measured narrower than what it sold, all
get less in proportion. A lease outside its windows may always send a little (`MIN_SHARE` of its narrower port), so that a late
transfer does not stall for ever: only by these allowances can a port be allowed more than it has.

Knows no fabric but one thing: whether it lends. A circuit carries nothing outside its window, and all of it inside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import heapify, heappop, heappush
from typing import NamedTuple

from protocol.pace import Pace
from transfer.planner.lease import Pair

MIN_SHARE = 1 / 64
"""The least part of a port that a transfer may use, and the least that is worth a window of its own."""
_ROUNDING = 1e-12


class Claim(NamedTuple):
    """A lease at one moment: its way, with the rates that ports have now, and what is held for it; 0 outside its windows.

    A tuple, since one is made of every lease whenever paces are asked for.
    """

    lease_id: int
    pair: Pair
    reserved_bytes_per_second: int


def paces(claims: Sequence[Claim], lends_idle: bool) -> dict[int, Pace]:
    """The pace of every lease, by its id. The same claims in the same order give the same answer.

    `is_shared` is whether another lease is on either port. Where nothing is lent (`lends_idle` is False: circuits) a lease is
    allowed what it reserved, 0 outside its windows, and then it is `is_shared` as well: it must not send.
    """
    on, idle = _resources(claims)
    num_on = Counter(index for indices in on for index in indices[:2])
    weights = [claim.reserved_bytes_per_second for claim in claims]
    allowed = [float(weight) for weight in weights]
    if lends_idle:
        _fill(allowed, [(each, weights[each]) for each in range(len(claims)) if weights[each]], on, idle)
        waiting = [(each, 1) for each in range(len(claims)) if not weights[each]]
        _fill(allowed, waiting, on, idle)
        for each, _ in waiting:
            pair = claims[each].pair
            least = MIN_SHARE * min(pair.egress.bytes_per_second, pair.ingress.bytes_per_second)
            allowed[each] = max(allowed[each], least)
    found = {}
    for claim, weight, rate, indices in zip(claims, weights, allowed, on, strict=True):
        is_shared = num_on[indices[0]] > 1 or num_on[indices[1]] > 1 or not (lends_idle or weight)
        found[claim.lease_id] = Pace(weight if weight < rate else rate, rate, is_shared)
    return found


def least_pace(claim: Claim, num_near: int, holding: Sequence[Claim], lends_idle: bool) -> Pace:
    """A pace for one lease, found in a look or two at each other one: what it has if all others on a port take their part of
    it, and so never more than in `paces`; the same as there where all are on the same two ports.

    `num_near` others share a port with it, of which `holding` hold something now.
    """
    weight, pair = claim.reserved_bytes_per_second, claim.pair
    if not lends_idle:
        return Pace(weight, weight, is_shared=bool(num_near or not weight))
    has_egress, has_ingress = pair.egress.bytes_per_second, pair.ingress.bytes_per_second
    if weight:
        held_egress, held_ingress, held_between = _held_on(pair, holding)
        rate = min(
            has_egress * weight / (weight + held_egress),
            has_ingress * weight / (weight + held_ingress),
            pair.bytes_per_second * weight / (weight + held_between),
        )
    else:
        rate = MIN_SHARE * min(has_egress, has_ingress)
        if not holding:  # else they may have all that is idle
            rate = max(rate, min(has_egress, has_ingress, pair.bytes_per_second) / (1 + num_near))
    return Pace(weight if weight < rate else rate, rate, is_shared=num_near > 0)


def _held_on(pair: Pair, claims: Sequence[Claim]) -> tuple[int, int, int]:
    """What claims hold on the egress, on the ingress, and on the way between."""
    on_egress = on_ingress = on_both = 0
    for _, way, held in claims:
        is_on_egress, is_on_ingress = way.egress.name == pair.egress.name, way.ingress.name == pair.ingress.name
        on_egress += held if is_on_egress else 0
        on_ingress += held if is_on_ingress else 0
        on_both += held if is_on_egress and is_on_ingress else 0
    return on_egress, on_ingress, on_both


def _resources(claims: Sequence[Claim]) -> tuple[list[tuple[int, ...]], list[float]]:
    """By claim the indices of its egress, its ingress, and its way if that is narrower; by index what there is."""
    egresses: dict[str, int] = {}
    ingresses: dict[str, int] = {}
    ways: dict[tuple[str, str], int] = {}
    idle: list[float] = []
    on: list[tuple[int, ...]] = []
    for claim in claims:
        pair = claim.pair
        egress, ingress, rate = pair.egress, pair.ingress, pair.bytes_per_second
        left = egresses.setdefault(egress.name, len(idle))
        if left == len(idle):
            idle.append(egress.bytes_per_second)
        right = ingresses.setdefault(ingress.name, len(idle))
        if right == len(idle):
            idle.append(ingress.bytes_per_second)
        if rate >= egress.bytes_per_second or rate >= ingress.bytes_per_second:
            on.append((left, right))
            continue
        between = ways.setdefault((egress.name, ingress.name), len(idle))
        if between == len(idle):
            idle.append(rate)
        on.append((left, right, between))
    return on, idle


def _fill(
    allowed: list[float], shares: Sequence[tuple[int, int]], on: Sequence[tuple[int, ...]], idle: list[float]
) -> None:
    """Sets what is allowed to shares (index of a claim, weight), weighted max-min, and takes it from `idle`.

    All rates rise together, each by its weight, until a resource is full: who is on it stays, the others rise on. How high a
    resource lets its leases rise only grows as others of them stay behind, so that a heap with old levels finds the next one.
    """
    members: dict[int, list[tuple[int, int]]] = {}
    weights: dict[int, int] = {}
    for share in shares:
        for index in on[share[0]]:
            members.setdefault(index, []).append(share)
            weights[index] = weights.get(index, 0) + share[1]
    levels = [(idle[index] / weight, index) for index, weight in weights.items()]
    heapify(levels)
    filled: set[int] = set()
    while levels:
        level, index = heappop(levels)
        if not weights[index]:
            continue
        now_level = idle[index] / weights[index]
        if now_level > level * (1.0 + _ROUNDING):
            heappush(levels, (now_level, index))
            continue
        for each, weight in members[index]:
            if each not in filled:
                filled.add(each)
                rate = allowed[each] = weight * level
                for other in on[each]:
                    left = idle[other] - rate
                    idle[other] = left if left > 0.0 else 0.0
                    weights[other] -= weight
