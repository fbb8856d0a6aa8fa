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
    """A worker: where it runs, what it holds, how it is. `status` has its counters by name, `kv_bytes_by_tier` the bytes of KV
    packed or unpacked by precision. `prefill_prediction_error_ratio` is how far off the predicted times of its prompts were.
    """

    name: str
    incarnation: str
    role: Literal["prefill", "decode"]
    is_healthy: bool
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
    prefill_prediction_error_ratio: float | None


class ClusterLink(Shape):
    """A link from a prefill to a decode worker, with its rate in the self-test and as measured since."""

    prefill: str
    decode: str
    transport: str
    self_test_bytes_per_second: float
    bytes_per_second: float


class ClusterAnswer(Shape):
    """The workers and the links between them."""

    is_ready: bool
    reason: str
    workers: list[ClusterWorker]
    links: list[ClusterLink]
