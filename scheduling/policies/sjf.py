"""`sjf`: shortest job first, on predicted output length.

Rule: what has been started goes on; then by the tokens of the whole job, uncached prompt and predicted output; equals by
arrival. No constants. Source: the textbook rule. Inferred: that a token of output counts as one of the prompt, which is what
both cost beside the fixed part of a step; known prompt lengths then outweigh most errors of the prediction.

Promises nothing: while shorter jobs keep coming, a long one waits for ever.
"""

from __future__ import annotations

import math

from scheduling.policies.policy import KeyPolicy
from scheduling.waiting_line import Key
from scheduling.work import Work


class ShortestJobFirst(KeyPolicy):
    """By predicted work; not interrupted."""

    def key(self, work: Work) -> Key:
        """Started or not, tokens of the job, then the number of the request."""
        num_tokens = work.num_known - work.num_generated - work.num_cached_at_start + work.num_predicted_output
        return not work.is_started, num_tokens, work.arrival

    def overtaken_for_s(self, work: Work) -> float:
        """Without end."""
        return math.inf
