"""`spf-aging`: shortest prompt first, where waiting makes a prompt shorter.

Rule: by uncached tokens - w * seconds since arrival; equals by arrival. Two requests age alike, so that their order does not
depend on the time: the key is uncached tokens + w * time of arrival. Source: the key of a public vLLM fork, which ends the
ageing at 0 and so has to sort again at every step; a study of eight policies found shortest-prompt-first with ageing the
strongest that needs no prediction. Inferred: no end at 0, and w, for which the fork has no known default, as `AGING_SHARE` of
the rate at which the worker reads prompts, after a published trial of `work - 0.2 * age` in units of time.

Bound: what comes x / w seconds after a prompt of x tokens, 1 / `AGING_SHARE` times what it takes to read it, cannot have a
smaller key. So it is overtaken only by what comes within x / w.
"""

from __future__ import annotations

import math

from protocol.errors import ConfigError
from scheduling.policies.policy import KeyPolicy
from scheduling.waiting_line import Key
from scheduling.work import Work

AGING_SHARE = 0.2
"""Tokens that a second of waiting counts for, as a share of those that a second of reading does."""


class AgingShortestPromptFirst(KeyPolicy):
    """By uncached tokens less `tokens_per_s` for every second since arrival."""

    def __init__(self, tokens_per_s: float) -> None:
        if not (math.isfinite(tokens_per_s) and tokens_per_s > 0):
            raise ConfigError(f"a second of waiting must count for a positive number of tokens, got {tokens_per_s}")
        self._tokens_per_s = tokens_per_s

    def key(self, work: Work) -> Key:
        """Uncached tokens, and for each second that it came later some more; then the number of the request."""
        return work.num_known - work.num_cached + self._tokens_per_s * work.arrival_s, work.arrival

    def overtaken_for_s(self, work: Work) -> float:
        """Until its age outweighs its length."""
        return work.num_uncached / self._tokens_per_s
