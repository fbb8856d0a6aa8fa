"""`spf`: shortest prompt first.

Rule: by the tokens that are still to be computed, those of a cached prefix not among them; equals by arrival. No constants. A
prompt that is read is overtaken at the next step by one that has less left. Source: "shortest first" of several schedulers,
which count the whole prompt and do not interrupt it; what is counted and that it may be interrupted is this project's.

Promises nothing: while shorter prompts keep coming, a long one waits for ever.
"""

from __future__ import annotations

import math

from scheduling.policies.policy import KeyPolicy
from scheduling.waiting_line import Key
from scheduling.work import Work


class ShortestPromptFirst(KeyPolicy):
    """By uncached tokens."""

    def key(self, work: Work) -> Key:
        """Uncached tokens, then the number of the request."""
        return work.num_known - work.num_cached, work.arrival

    def overtaken_for_s(self, work: Work) -> float:
        """Without end."""
        return math.inf
