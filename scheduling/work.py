"""A sequence as a scheduler sees it: a few integers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """One sequence that wants a part of the next step.

    `num_known` tokens are known (prompt and generated); the KV of the first `num_cached` of them is in the cache. The step
    that closes the gap draws the next token. `arrival` counts requests in the order in which they came. A step runs at most
    `max_step_tokens` of it, where that is given.
    """

    request_id: str
    num_known: int
    num_cached: int
    arrival: int
    max_step_tokens: int | None = None

    @property
    def num_uncached(self) -> int:
        """Tokens still to be run; 1 for a sequence that decodes."""
        return self.num_known - self.num_cached

    @property
    def num_next(self) -> int:
        """Those of them that one step may run."""
        num_uncached = self.num_uncached
        return num_uncached if self.max_step_tokens is None else min(num_uncached, self.max_step_tokens)
