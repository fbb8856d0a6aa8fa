"""What the HTTP front needs to know from the start. Composed by the command line and handed down; reads no file."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from enum import StrEnum

from protocol.errors import ConfigError
from protocol.request import MAX_CHOICES
from protocol.wire_rule import WireOffer

MIB = 2**20
WORKER_TIMEOUT_S = 3.0
MAX_MOVES = 3
READINESS_WINDOW_S = 30.0
_KEY = re.compile(r"[!-~]+")
_TARGET = re.compile(r"(?:[^\s:/\[\]]+|\[[0-9A-Fa-f:.%]+\]):[1-9]\d{0,4}")
_ORIGIN = re.compile(r"\*|[a-z][a-z0-9+.-]*://[^\s/?#*]+")


class RoutingPolicy(StrEnum):
    """How the pair of workers for a request is chosen."""

    JOINT = "joint"
    ROUND_ROBIN = "round_robin"
    LEAST_LOADED = "least_loaded"
    POWER_OF_TWO = "power_of_two"


@dataclass(frozen=True, slots=True)
class RouterConfig:
    """Limits and names of one router, checked when built.

    `context_tokens` is the model's context; `max_request_tokens` is the most positions (prompt and answer) that the
    whole KV pool of a worker can hold, None when the pool is larger than the context. `vocab_size` is the number of
    token ids that the model knows, None when that is the tokenizer's. At most `max_concurrent` generations run and
    `max_queue` wait. `request_timeout_s` counts from the arrival of a request to its last token. A request whose first token
    cannot be expected within `max_wait_s` is refused, or with None, within its own timeout. `max_choices` is the most answers
    to one prompt of a request.

    With `api_keys` clients must show one of them. `tls_cert` and `tls_key` are PEM files, both or neither. Pages of
    `cors_origins` (`*` for all) may call from a browser. `grpc_port` is None for no gRPC, 0 for any free port. `wire` is how
    the workers write KV, and what a request may ask for instead. `routing_policy` chooses the pair of workers. With
    `plans_transfers` the network is reserved for each transfer; `link_bytes_per_second` is what every link moves as an operator
    says, None to measure it. `planner_target` is `host:port` of a planner that routers share; empty for one of its own.

    A worker that has not answered for `worker_timeout_s` is taken for dead. A request goes on elsewhere at most `max_moves`
    times. A generation over two workers proves for `readiness_window_s` that the cluster is ready.
    """

    served_model_name: str
    context_tokens: int
    host: str = "127.0.0.1"
    port: int = 8000
    max_request_tokens: int | None = None
    vocab_size: int | None = None
    max_concurrent: int = 256
    max_queue: int = 1024
    max_wait_s: float | None = None
    max_choices: int = MAX_CHOICES
    max_body_bytes: int = 4 * MIB
    body_timeout_s: float = 30.0
    request_timeout_s: float = 600.0
    retry_after_s: int = 1
    keep_alive_s: int = 65
    shutdown_grace_s: int = 30
    api_keys: tuple[str, ...] = field(default=(), repr=False)
    tls_cert: str = ""
    tls_key: str = ""
    cors_origins: tuple[str, ...] = ()
    grpc_port: int | None = None
    log_prompts: bool = False
    wire: WireOffer = field(default_factory=WireOffer)
    routing_policy: RoutingPolicy = RoutingPolicy.JOINT
    plans_transfers: bool = False
    link_bytes_per_second: int | None = None
    planner_target: str = ""
    worker_timeout_s: float = WORKER_TIMEOUT_S
    max_moves: int = MAX_MOVES
    readiness_window_s: float = READINESS_WINDOW_S

    def __post_init__(self) -> None:
        if not self.served_model_name:
            raise ConfigError("served-model-name is empty: give the name that clients will send as `model`")
        self._check_ports()
        self._check_access()
        for name in (
            "context_tokens",
            "max_choices",
            "max_concurrent",
            "max_body_bytes",
            "retry_after_s",
            "keep_alive_s",
        ):
            self._at_least(name, 1)
        for name in ("max_queue", "shutdown_grace_s", "max_moves"):
            self._at_least(name, 0)
        for name in ("body_timeout_s", "request_timeout_s", "worker_timeout_s", "readiness_window_s"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ConfigError(f"{name} must be a positive number of seconds, got {value}")
        if self.max_wait_s is not None and not self.max_wait_s > 0:
            raise ConfigError(
                f"max_wait_s must be a positive number of seconds, or None for no limit, got {self.max_wait_s}"
            )
        if self.max_request_tokens is not None:
            self._at_least("max_request_tokens", 2)
        if self.link_bytes_per_second is not None:
            self._at_least("link_bytes_per_second", 1)
        if self.planner_target and not _TARGET.fullmatch(self.planner_target):
            raise ConfigError(
                "planner must be HOST:PORT as `kvferry planner` prints it, e.g. 10.0.0.5:7070 or [fd00::5]:7070, got "
                f"{self.planner_target!r}"
            )

    @property
    def max_total_tokens(self) -> int:
        """Most positions that one request may occupy: the smaller of the model's context and the workers' pool."""
        if self.max_request_tokens is None:
            return self.context_tokens
        return min(self.context_tokens, self.max_request_tokens)

    def patience_s(self, remaining_s: float) -> float:
        """How long a request that has `remaining_s` left may be expected to wait for its first token."""
        return remaining_s if self.max_wait_s is None else min(remaining_s, self.max_wait_s)

    @property
    def scheme(self) -> str:
        """Of the HTTP server's URLs."""
        return "https" if self.tls_cert else "http"

    def _check_ports(self) -> None:
        if not 0 <= self.port <= 65535:
            raise ConfigError(f"port must be in [0, 65535], got {self.port}; 0 takes any free port")
        if self.grpc_port is None:
            return
        if not 0 <= self.grpc_port <= 65535:
            raise ConfigError(f"grpc-port must be in [0, 65535], got {self.grpc_port}; `off` serves no gRPC")
        if self.grpc_port == self.port != 0:
            raise ConfigError(f"port and grpc-port are both {self.port}: HTTP and gRPC need a port each")

    def _check_access(self) -> None:
        for number, key in enumerate(self.api_keys, 1):
            if not _KEY.fullmatch(key):  # it could not be sent in a header; never shown, not even when it is wrong
                raise ConfigError(f"API key number {number} must be printable ASCII without spaces, and not empty")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("tls-cert and tls-key belong together: give both files or neither")
        for origin in self.cors_origins:
            if not _ORIGIN.fullmatch(origin):
                raise ConfigError(
                    f"cors-origins: {origin!r} is no origin: write a scheme, a host and a port, as in "
                    "https://app.example.com or http://localhost:3000, or * for all"
                )

    def _at_least(self, name: str, low: int) -> None:
        value = getattr(self, name)
        if value < low:
            raise ConfigError(f"{name} must be at least {low}, got {value}")
