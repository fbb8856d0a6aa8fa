"""One worker in the fleet: its client, what it said of itself, how busy this router keeps it, whether it answers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from protocol import kvferry_worker_pb2 as pb
from protocol.description import WorkerDescription
from router.fleet.breaker import CircuitBreaker
from router.fleet.clients import WorkerClient
from router.fleet.remembered import Remembered
from scheduling.pair_cost import ASSUMED_STAY_S, DecodeLoad, PrefillLoad
from scheduling.prefill_time import PrefillTimeModel

Client = TypeVar("Client", bound=WorkerClient)
Answer = TypeVar("Answer")

STAY_SMOOTHING = 0.1
MAX_MISSED_PINGS = 3
"""Status calls that may fail in a row before a worker is taken for gone."""


@dataclass(slots=True)
class Member(Generic[Client]):
    """`num_queued_tokens` (prompts to read), `num_active` and `num_held_tokens` count what this router has given it and not got
    back, `backlog_bytes` what is still to cross from a prefill worker to each decode worker. `prefill_time` predicts how
    long it reads, `mean_stay_s` how long a request keeps its place.

    `num_restarts` is how often the worker was started again before this life of it.

    `refused_for_good` names the decode workers that a prefill worker can never ship to, `forgotten_by` the peers that have
    ended their transfers with an incarnation that is gone, `uncancelled` the requests that it is to be told to end as soon
    as it answers again.

    `breaker` keeps requests from it while it fails them, `is_known_gone` is set once its process has certainly ended.

    What is `Remembered` was worked out from these when it was last asked for.
    """

    client: Client
    description: WorkerDescription
    status: pb.WorkerStatus = field(default_factory=pb.WorkerStatus)
    num_restarts: int = 0
    num_missed_pings: int = 0
    num_active: int = 0
    num_queued_tokens: int = 0
    num_held_tokens: int = 0
    prefill_time: PrefillTimeModel = field(default_factory=PrefillTimeModel.stated)
    mean_stay_s: float = ASSUMED_STAY_S
    backlog_bytes: dict[str, float] = field(default_factory=dict)
    links: dict[str, pb.ConnectReply] = field(default_factory=dict)
    link_refusals: dict[str, str] = field(default_factory=dict)
    refused_for_good: set[str] = field(default_factory=set)
    forgotten_by: set[str] = field(default_factory=set)
    uncancelled: set[str] = field(default_factory=set)
    breaker: CircuitBreaker = field(default_factory=CircuitBreaker)
    is_known_gone: bool = False
    prefill_load: Remembered[PrefillLoad] = field(default_factory=Remembered, repr=False, compare=False)
    decode_load: Remembered[DecodeLoad] = field(default_factory=Remembered, repr=False, compare=False)
    measured_rates: Remembered[dict[str, float]] = field(default_factory=Remembered, repr=False, compare=False)
    packed_link_rates: Remembered[bytes] = field(default_factory=Remembered, repr=False, compare=False)
    packed_backlogs: Remembered[bytes] = field(default_factory=Remembered, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The worker's name, the same over all its incarnations."""
        return self.description.worker.name

    @property
    def is_healthy(self) -> bool:
        """Whether it answers."""
        return self.num_missed_pings < MAX_MISSED_PINGS

    @property
    def is_available(self) -> bool:
        """Whether requests may be given to it: it answers, is not about to end, and does not fail them."""
        return self.is_healthy and not self.status.is_draining and self.breaker.is_closed

    @property
    def why_unavailable(self) -> str:
        """Empty when it is available."""
        if self.status.is_drained:
            return "drained"
        if not self.is_healthy:
            return "does not answer"
        if self.status.is_draining:
            return "is draining"
        return "" if self.breaker.is_closed else "has failed several requests in a row and is being tried"

    def miss_ping(self) -> None:
        """A status call has failed. Once the worker is taken for gone, whoever waits for it learns so."""
        self.num_missed_pings += 1
        if not self.is_healthy:
            self.client.give_up()

    def measured_bytes_per_second(self, decode: str) -> float:
        """What the link to a decode worker moved under load; 0 where it was not measured."""
        return self.measured_rates.of((self.status,), self._measured_rates).get(decode, 0.0)

    def time_stay(self, seconds: float) -> None:
        """Learns from a request that kept its place for so long."""
        self.mean_stay_s += STAY_SMOOTHING * (seconds - self.mean_stay_s)

    def _measured_rates(self) -> dict[str, float]:
        return {link.peer.name: link.bytes_per_second for link in reversed(self.status.links)}
