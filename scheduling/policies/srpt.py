"""`srpt`: shortest remaining processing time, on predicted output length.

Rule: by the tokens that are left, uncached ones and predicted output still to come; equals by arrival. A prompt that is read is
overtaken at the next step by a job that has less left; a sequence that decodes is not, since its KV would have to be computed
again. No constants. Source: the textbook rule, on a prediction; what is counted is as in `sjf`.

Promises nothing: while shorter jobs keep coming, a long one waits for ever.
"""

from __future__ import annotations

import math

from scheduling.policies.policy import KeyPolicy
from scheduling.waiting_line import Key
from scheduling.work import Work


class ShortestRemainingFirst(KeyPolicy):
    """By what is left of the predicted work."""

    def key(self, work: Work) -> Key:
        """Tokens that are left, then the number of the request."""
        num_output_left = work.num_predicted_output - work.num_generated
        return work.num_known - work.num_cached + (num_output_left if num_output_left > 1 else 1), work.arrival

    def overtaken_for_s(self, work: Work) -> float:
        """Without end."""
        return math.inf
