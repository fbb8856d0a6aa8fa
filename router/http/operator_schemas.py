"""The shapes of what operators and tools are answered: models, tokens, health, the cluster, errors."""

from __future__ import annotations

from typing import Literal

from router.http.answer_schemas import Count, Shape


class ErrorDetail(Shape):
    """What went wrong. `param` names the field or header at fault, `code` is for programs, `message` for people."""

    message: str
    type: Literal["invalid_request_error", "authentication_error", "rate_limit_error", "server_error"]
    param: str | None
    code: str


class ErrorAnswer(Shape):
    """An error."""

    error: ErrorDetail


class ModelCard(Shape):
    """The served model. A prompt and its answer have `max_model_len` tokens at most."""

    id: str
    object: Literal["model"]
    created: Count
    owned_by: str
    max_model_len: Count


class ModelList(Shape):
    """All models: one."""

    object: Literal["list"]
    data: list[ModelCard]


class TokenizeAnswer(Shape):
    """Token ids of a text; `token_strs`, when asked for, are their spellings in the vocabulary."""

    count: Count
    max_model_len: Count
    tokens: list[Count]
    token_strs: list[str] | None


class DetokenizeAnswer(Shape):
    """The text of token ids."""

    prompt: str


class VersionAnswer(Shape):
    """The version of kvferry."""

    version: str


class HealthAnswer(Shape):
    """The process is alive."""

    status: Literal["ok"]


class WorkerReadinessShape(Shape):
    """Whether one worker can be used; `reason` is empty when it can."""

    worker: str
    role: Literal["prefill", "decode"]
    is_ready: bool
    reason: str


class ReadinessAnswer(Shape):
    """Whether requests can be served now; `reason` says why not."""

    status: Literal["ready", "not_ready"]
    reason: str
    workers: list[WorkerReadinessShape]


class ClusterWorker(Shape):
    """A worker: where it runs, what it holds, how it is; `why_unavailable` says why it is given no requests, and is empty while
    it is given some. `status` has its counters by name, `kv_bytes_by_tier` the bytes of KV packed or unpacked by precision,
    `transfer_failures_by_cause` the transfers that failed by the code of what ended them, `prefix_cache` the counters of that,
    null where none is kept. `output_length_error_octaves` is how far off its predictions of answers' lengths were,
    `output_length_covered_ratio` the share of answers that were no longer; `prefill_prediction_error_ratio` is how far off the
    predicted times of its prompts were. `num_restarts` is how often it was started again.
    """

    name: str
    incarnation: str
    role: Literal["prefill", "decode"]
    is_healthy: bool
    why_unavailable: str
    host: str
    process_id: Count
    device: str
    num_threads: Count
    cores: list[Count]
    target: str
    transport: str
    kv_dtype: str
    block_size: Count
    capacity_tokens: Count
    status: dict[str, Count]
    kv_bytes_by_tier: dict[str, Count]
    transfer_failures_by_cause: dict[str, Count]
    prefix_cache: dict[str, Count] | None
    output_length_error_octaves: float
    output_length_covered_ratio: float
    prefill_prediction_error_ratio: float | None
    num_restarts: Count


class ClusterRouter(Shape):
    """The router that answers: its process, and how often the router was started again before."""

    process_id: Count
    num_restarts: Count


class ClusterLink(Shape):
    """A link from a prefill to a decode worker, with its rate in the self-test, and the one that is counted on with its source:
    as an operator gave it, as it was measured under load, or the self-test's.
    """

    prefill: str
    decode: str
    transport: str
    self_test_bytes_per_second: float
    bytes_per_second: float
    rate_source: Literal["given", "measured", "self-test", "assumed"]


class ClusterPort(Shape):
    """One direction of a worker's attachment: what it carries, what of that is reserved, allowed and achieved now."""

    worker: str
    direction: Literal["egress", "ingress"]
    bytes_per_second: Count
    reserved_bytes_per_second: Count
    allowed_bytes_per_second: Count
    achieved_bytes_per_second: Count
    num_leases: Count


class ClusterPace(Shape):
    """What is held for a transfer, what it may use, and whether others use its ports too."""

    reserved_bytes_per_second: float
    allowed_bytes_per_second: float
    is_shared: bool


class ClusterLease(Shape):
    """A transfer that is under way, for which the network is reserved."""

    lease_id: Count
    owner: str
    request_id: str
    source: str
    destination: str
    num_bytes: Count
    acknowledged_bytes: Count
    pace: ClusterPace
    achieved_bytes_per_second: float
    ends_in_s: float


class ClusterReservations(Shape):
    """Ports, leases and counts of the planner; `num_unplanned` are this router's transfers without a lease, by error."""

    ports: list[ClusterPort]
    leases: list[ClusterLease]
    num_reserved: Count
    num_refused: Count
    num_released: Count
    num_expired: Count
    num_unplanned: dict[str, Count]


class ClusterTransfer(Shape):
    """A planned transfer that has ended: as it was planned, and as it went. The ends count from the reservation; the actual one
    is null where the KV did not land.
    """

    request_id: str
    prefill: str
    decode: str
    num_bytes: Count
    acknowledged_bytes: Count
    reserved_bytes_per_second: float
    achieved_bytes_per_second: float
    predicted_end_s: float | None
    actual_end_s: float | None


class ClusterAnswer(Shape):
    """The router, the workers, the links between them, how the network is reserved (null where nobody plans it), and the last
    transfers.
    """

    is_ready: bool
    reason: str
    router: ClusterRouter
    workers: list[ClusterWorker]
    links: list[ClusterLink]
    reservations: ClusterReservations | None
    recent_transfers: list[ClusterTransfer]
