"""What a decode worker may be told."""

from __future__ import annotations

from dataclasses import dataclass

from engine.prefix_cache.policy import PrefixCachePolicy
from protocol.errors import ConfigError
from scheduling.policies.choose import make_policy


@dataclass(frozen=True, slots=True)
class DecodeConfig:
    """Bounds of a decode worker.

    `max_step_tokens` is the token budget of a step, decodes first; `max_sequences` the answers that hold blocks at a time, so
    that no request can ask for more; `max_waiting` the queue of those that do not yet. `kv_wait_s` is how long a request
    whose first tokens are known waits for its KV while none of it lands, before it is computed here, and how long one waits
    for landing slots while nobody is given any. `min_wire_budget` is the smallest `kv_wire_budget` that a request may ask for,
    None for that of the receiver's own rule.

    `policy` says who goes next (`scheduling/policies/choose.py`). `kv_reserve` (0 to 1) is the share of the predicted output
    for which blocks are kept free (`scheduling/admission.py`). With `itl_target_s` prompts are read in chunks that keep a step
    with decodes below it. `swap_bytes` of host memory may hold the KV of preempted requests; 0: it is computed again.
    `prefix_cache` is how cached prefixes are evicted; with None none are kept.
    """

    max_step_tokens: int = 256
    max_sequences: int = 64
    max_waiting: int = 1024
    kv_wait_s: float = 10.0
    min_wire_budget: float | None = None
    policy: str = "fcfs"
    kv_reserve: float = 0.0
    itl_target_s: float | None = None
    swap_bytes: int = 0
    prefix_cache: PrefixCachePolicy | None = PrefixCachePolicy.ARC

    def __post_init__(self) -> None:
        make_policy(self.policy)  # so that a wrong name is found here
        if not 0.0 <= self.kv_reserve <= 1.0:
            raise ConfigError(
                f"the share of the predicted output that is kept free lies in [0, 1], got {self.kv_reserve}"
            )
        if (self.itl_target_s is not None and self.itl_target_s <= 0.0) or self.swap_bytes < 0:
            raise ConfigError(
                f"a target for the time between tokens is positive, and memory to swap to not negative: {self}"
            )
        if min(self.max_step_tokens, self.max_sequences, self.max_waiting) < 1 or self.kv_wait_s <= 0:
            raise ConfigError(f"a decode worker's bounds must be positive, got {self}")
        if self.max_step_tokens < self.max_sequences:
            raise ConfigError(
                f"a step of {self.max_step_tokens} tokens cannot hold one token for each of {self.max_sequences} sequences"
            )
