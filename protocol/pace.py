"""How fast a transfer may go: what the planner holds for it, what it may use of the rest, and what it reports back.

Rates are bytes per second on the wire, headers included.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import BadRequest


@dataclass(frozen=True, slots=True)
class Pace:
    """`reserved_bytes_per_second` is held for the transfer; `allowed_bytes_per_second`, never less, is that and what is idle.

    With `is_shared` another transfer uses one of its ports, so that the sender keeps to what is allowed. Alone it sends as
    fast as the link lets it, and what is allowed is only what the planner believes that to be. Raises `BadRequest` for rates
    that are negative, or an allowance that is less than what is held.
    """

    reserved_bytes_per_second: float
    allowed_bytes_per_second: float
    is_shared: bool

    def __post_init__(self) -> None:
        if not 0.0 <= self.reserved_bytes_per_second <= self.allowed_bytes_per_second:
            raise BadRequest(f"{self} allows less than it holds")


@dataclass(frozen=True, slots=True)
class TransferPlan:
    """What a prefill worker is told with a prompt: its pace, and the rate at which it is predicted to produce the KV.

    Raises `BadRequest` when that is not more than 0.
    """

    pace: Pace
    produced_bytes_per_second: float

    def __post_init__(self) -> None:
        if not self.produced_bytes_per_second > 0.0:
            raise BadRequest("a plan needs the rate at which KV is produced")


@dataclass(frozen=True, slots=True)
class TransferProgress:
    """What a prefill worker reports of a planned transfer, now and then and at its end.

    `acknowledged_bytes` have landed and were verified, within the `seconds` since its first chunk was sent.
    """

    request_id: str
    acknowledged_bytes: int
    seconds: float
    is_ended: bool
