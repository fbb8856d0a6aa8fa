"""What a prefill worker may be told."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from engine.prefix_cache.policy import PrefixCachePolicy
from protocol.errors import ConfigError
from scheduling.policies.choose import make_policy


class Push(StrEnum):
    """When a chunk may leave: as soon as its tokens are computed, paced as the planner says where it reserved the network
    (`PLANNED`) or as fast as the link lets it (`CHUNKS`); or not before the prompt's first token is sampled (`END`).
    """

    PLANNED = "planned"
    CHUNKS = "chunks"
    END = "end"


@dataclass(frozen=True, slots=True)
class PrefillConfig:
    """`max_step_tokens` is the chunk budget of a step, over all prompts in it; `max_waiting` bounds the queue, of
    which `policy` says who goes next (`scheduling/policies/choose.py`). `prefix_cache` is how cached prefixes are evicted; with
    None none are kept.
    """

    max_step_tokens: int = 256
    max_sequences: int = 8
    max_waiting: int = 1024
    policy: str = "fcfs"
    push: Push = Push.PLANNED
    prefix_cache: PrefixCachePolicy | None = PrefixCachePolicy.ARC

    def __post_init__(self) -> None:
        make_policy(self.policy)  # so that a wrong name is found here
        if min(self.max_step_tokens, self.max_sequences, self.max_waiting) < 1:
            raise ConfigError(f"a prefill worker's bounds must be at least 1, got {self}")
