"""What a decode worker may be told."""

from __future__ import annotations

from dataclasses import dataclass

from protocol.errors import ConfigError


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """Bounds of a decode worker.

    `max_step_tokens` is the token budget of a step, decodes first; `max_sequences` the answers that hold blocks at a time, so
    that no request can ask for more; `max_waiting` the queue of those that do not yet. `kv_wait_s` is how long a request
    whose first tokens are known waits for its KV while none of it lands, before it is computed here. `min_wire_budget` is the
    smallest `kv_wire_budget` that a request may ask for, None for that of the receiver's own rule.
    """

    max_step_tokens: int = 256
    max_sequences: int = 64
    max_waiting: int = 1024
    kv_wait_s: float = 10.0
    min_wire_budget: float | None = None

    def __post_init__(self) -> None:
        if min(self.max_step_tokens, self.max_sequences, self.max_waiting) < 1 or self.kv_wait_s <= 0:
            raise ConfigError(f"a decode worker's bounds must be positive, got {self}")
        if self.max_step_tokens < self.max_sequences:
            raise ConfigError(
                f"a step of {self.max_step_tokens} tokens cannot hold one token for each of {self.max_sequences} sequences"
            )
