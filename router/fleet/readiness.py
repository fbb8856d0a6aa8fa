"""Whether requests can be served: who may be given requests, and when a generation has last gone all the way. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from router.fleet.member import Member
from router.generation import Readiness, WorkerReadiness

Members = Mapping[str, Member[Any]]


@dataclass(slots=True)
class ProofRecord:
    """When a generation was last proven over a prefill and a decode worker (over a decode worker where there are no prefill
    workers), in seconds of the fleet's clock, and what has failed since.
    """

    last_success_at: float = -math.inf
    failure: str = ""

    def succeeded(self, now: float) -> None:
        """A generation has: a proof, or a client's."""
        self.last_success_at = now
        self.failure = ""

    def why_none(self, since_s: float) -> str:
        """Why there is no proof, the last being that old."""
        text = "no generation has succeeded yet"
        if math.isfinite(since_s):
            text = f"no generation has gone over a prefill and a decode worker for {since_s:.0f} s"
        return f"{text}: {self.failure}" if self.failure else text


def readiness_of(prefills: Members, decodes: Members, unproven: str) -> Readiness:
    """The state of a fleet for whose way `unproven` says why it has not been proven lately; empty when it has been."""
    workers = tuple(
        WorkerReadiness(one.name, one.description.role, one.is_available, one.why_unavailable)
        for one in (*prefills.values(), *decodes.values())
    )
    reason = who_is_missing(prefills, decodes) or unproven
    return Readiness(not reason, reason, workers)


def who_is_missing(prefills: Members, decodes: Members) -> str:
    """Why no pair of these can serve; empty when one can. No prefill worker is missing where there are none at all."""
    if not any(one.is_available for one in decodes.values()):
        return f"no decode worker takes requests{_reasons(decodes)}"
    if not prefills:
        return ""
    available = [one for one in prefills.values() if one.is_available]
    if not available:
        return f"no prefill worker takes requests{_reasons(prefills)}"
    if not any(decodes[name].is_available for one in available for name in one.links if name in decodes):
        refusals = "; ".join(text for one in available for text in one.link_refusals.values())
        return (
            f"no prefill worker is linked with a decode worker that takes requests{': ' + refusals if refusals else ''}"
        )
    return ""


def _reasons(members: Members) -> str:
    text = "; ".join(f"{one.name} {one.why_unavailable}" for one in members.values() if one.why_unavailable)
    return f": {text}" if text else ""
