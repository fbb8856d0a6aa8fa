"""One worker in the fleet: its client, what it said of itself, how busy this router keeps it, whether it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from protocol import kvferry_worker_pb2 as pb
from protocol.description import WorkerDescription
from router.fleet.clients import WorkerClient

Client = TypeVar("Client", bound=WorkerClient)
Answer = TypeVar("Answer")

ASSUMED_PREFILL_TOKENS_PER_SECOND = 1000.0
"""Until the first prompt has been timed."""
RATE_SMOOTHING = 0.3
MAX_MISSED_PINGS = 3
"""Status calls that may fail in a row before a worker is taken for gone."""


@dataclass(slots=True)
class Member(Generic[Client]):
    """`num_queued_tokens` and `num_active` count what this router has given it and not got back.

    `refused_for_good` names the decode workers that a prefill worker can never ship to, `forgotten_by` the peers that have
    ended their transfers with an incarnation that is gone, `uncancelled` the requests that it is to be told to end as soon
    as it answers again.
    """

    client: Client
    description: WorkerDescription
    status: pb.WorkerStatus = field(default_factory=pb.WorkerStatus)
    num_missed_pings: int = 0
    num_active: int = 0
    num_queued_tokens: int = 0
    num_held_tokens: int = 0
    tokens_per_second: float = ASSUMED_PREFILL_TOKENS_PER_SECOND
    links: dict[str, pb.ConnectReply] = field(default_factory=dict)
    link_refusals: dict[str, str] = field(default_factory=dict)
    refused_for_good: set[str] = field(default_factory=set)
    forgotten_by: set[str] = field(default_factory=set)
    uncancelled: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        """The worker's name, the same over all its incarnations."""
        return self.description.worker.name

    @property
    def is_healthy(self) -> bool:
        """Whether it answers."""
        return self.num_missed_pings < MAX_MISSED_PINGS

    def miss_ping(self) -> None:
        """A status call has failed. Once the worker is taken for gone, whoever waits for it learns so."""
        self.num_missed_pings += 1
        if not self.is_healthy:
            self.client.give_up()

    def time_prefill(self, num_tokens: int, seconds: float) -> None:
        """Learns from a prompt of `num_tokens` whose first token took `seconds`, queue included."""
        if seconds > 0:
            self.tokens_per_second += RATE_SMOOTHING * (num_tokens / seconds - self.tokens_per_second)
