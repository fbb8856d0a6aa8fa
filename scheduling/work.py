"""A sequence as a scheduler sees it, a few numbers, and what a step grants it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Work:
    """One sequence that wants a part of the next step.

    `num_known` tokens are known (prompt and generated); the KV of the first `num_cached` of them is in the cache. The step
    that closes the gap draws the next token. `arrival` counts requests in the order in which they came. A step runs at most
    `max_step_tokens` of it, where that is given.

    `arrival_s` is when it came, on the clock that policies are asked by. A smaller `priority` goes first. `num_generated` of
    the known tokens are output; `num_predicted_output` is what its whole output is expected to be, 0 for not known.
    `num_cached_at_start` were in a prefix cache before anything of it was computed. With `is_continued` another worker, which
    failed or gave it up, drew the last known tokens. A sequence that waits may be built once and kept: nothing of it changes.
    """

    request_id: str
    num_known: int
    num_cached: int
    arrival: int
    max_step_tokens: int | None = None
    arrival_s: float = 0.0
    priority: int = 0
    num_generated: int = 0
    num_predicted_output: int = 0
    num_cached_at_start: int = 0
    is_continued: bool = False

    @property
    def num_uncached(self) -> int:
        """Tokens still to be run; 1 for a sequence that decodes."""
        return self.num_known - self.num_cached

    @property
    def num_next(self) -> int:
        """Those of them that one step may run."""
        num_uncached = self.num_uncached
        return num_uncached if self.max_step_tokens is None else min(num_uncached, self.max_step_tokens)

    @property
    def num_output_left(self) -> int:
        """Output that is expected to follow: at least the next token, whatever was predicted."""
        return max(1, self.num_predicted_output - self.num_generated)

    @property
    def num_left(self) -> int:
        """Tokens that are expected to be run before it has ended."""
        return self.num_uncached + self.num_output_left

    @property
    def is_started(self) -> bool:
        """Whether something of it was computed."""
        return self.num_cached > self.num_cached_at_start

    @property
    def is_resumed(self) -> bool:
        """Whether, not decoding, it has output: its KV was lost, or never came, or is another worker's, and somebody waits for
        the next token.
        """
        return self.num_generated > 0 or self.is_continued


@dataclass(frozen=True, slots=True)
class Grant:
    """The next `num_tokens` uncached tokens of a sequence run in this step."""

    request_id: str
    num_tokens: int
