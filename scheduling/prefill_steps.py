"""How a prompt is cut into steps when its KV is shipped as it is computed. Pure: token counts and one ratio in, tokens out.

What a step computes can leave when the step has ended, and what the last step computes can hide behind nothing. Large steps
compute faster; small ones keep a link busy and leave little for the end. With `headroom`, the rate at which KV crosses over
the one at which it is computed, and R tokens left:

* A link that keeps up needs a small end: a step of s tokens is followed by R - s more. All that was computed before the
  last step, of t tokens, has crossed by then if R - t <= headroom * (R - s + o), where o is what one more step costs, in
  tokens. So s <= R + o - (R - t)/headroom within the last steps; before them steps are full. The last chunk is one of its own.
* A link that is clearly slower is busy until long after the prefill, whatever the end looks like, if only it starts early and
  never runs dry. The first step is small, and each next one lasts as long as the link needs for what it has.

This project's own derivation; it takes a step's time as proportional to its tokens and `STEP_COST_TOKENS`.
"""

from __future__ import annotations

from dataclasses import dataclass

STEP_COST_TOKENS = 20
"""What a step costs beside its tokens, in tokens: reading the weights and the KV so far. Measured on a CPU with the demo model:
20 at the start of a prompt, 28 after 1,800 tokens. On a GPU it is more: a link that keeps up is then found to have less
headroom than it has, and the last steps are smaller than need be.
"""
MIN_STEP_TOKENS = 64
"""No step but the last, or the first over a narrow link, is cut below this, so that none is a third slower for its tokens."""
CUT_STEPS = 1
"""So many full steps are cut up for a small end: further cuts cost more time than they hide."""
FIRST_STEP_TOKENS = 64
"""Of the first step over a narrow link, which waits for it."""
RAMP_STEPS = 2
"""So many full steps are cut up to start early."""
NARROW_HEADROOM, EVEN_HEADROOM = 0.8, 1.1
"""Below the first, starting early gains more than it costs; above the second a small end does. In between neither: the link is
busy nearly all the time, and what is left for the end is left by the link, not by the last step. Not so for a prompt of
`RAMP_STEPS` full steps or fewer: in one piece nothing of it would hide, so that it starts early up to the second.
"""
AMPLE_HEADROOM = 40.0
"""Over a link so fast what a whole step produced crosses while a few tokens would be computed: one more step costs a short
prompt more than it hides.
"""
LONG_STEPS = 4
"""From so many full steps on one more is a few hundredths of the whole, and is always taken."""


@dataclass(frozen=True, slots=True)
class ShippedPrompt:
    """A prompt that is read and shipped: its tokens, and how they cross. Chunks of `chunk_tokens` lie on a grid that begins at
    token `first_sent`; the last chunk begins at `tail_start`. `headroom` as above. A full step has `full_step_tokens`. The
    first `num_cached_at_start` tokens need not be computed; they can leave at once or, `waits_for_step`, with the first step.
    """

    num_tokens: int
    first_sent: int
    chunk_tokens: int
    tail_start: int
    headroom: float
    full_step_tokens: int
    num_cached_at_start: int = 0
    waits_for_step: bool = False

    def max_step_tokens(self, num_computed: int) -> int:
        """Most tokens that the next step should run, at least 1, when `num_computed` are in the cache. Steps end where chunks
        end, so that nothing that was computed has to wait for the next step.
        """
        num_left, before_tail = self.num_tokens - num_computed, self.tail_start - num_computed
        if before_tail <= 0 or not self._pays:
            return num_left
        if self.headroom < self._narrow_headroom:
            wanted = self._until_dry(num_computed)
            return (
                num_left if num_left - wanted < MIN_STEP_TOKENS else self._to_chunk_end(num_computed, wanted, num_left)
            )
        num_whole = num_left - CUT_STEPS * self.full_step_tokens
        if num_whole >= MIN_STEP_TOKENS:
            return self._to_chunk_end(num_computed, num_whole, num_left)
        wanted = num_left + STEP_COST_TOKENS - before_tail / self.headroom
        return self._to_chunk_end(num_computed, max(MIN_STEP_TOKENS, wanted), before_tail)

    @property
    def _pays(self) -> bool:
        """Whether steps are cut at all."""
        is_long = self.num_tokens - self.num_cached_at_start >= LONG_STEPS * self.full_step_tokens
        if not 0.0 < self.headroom < AMPLE_HEADROOM:
            return self.headroom > 0.0 and is_long
        return not self._narrow_headroom <= self.headroom < EVEN_HEADROOM

    @property
    def _narrow_headroom(self) -> float:
        """Below it the prompt is read so that the link starts early."""
        return EVEN_HEADROOM if self.num_tokens <= RAMP_STEPS * self.full_step_tokens else NARROW_HEADROOM

    def _until_dry(self, num_computed: int) -> float:
        """Tokens that can be computed while a narrow link sends what it has: all that was produced but what has crossed. While
        it has nothing, those until it gets something.
        """
        num_produced = num_computed - self.first_sent
        if num_produced <= 0:
            return FIRST_STEP_TOKENS - num_produced
        if self.waits_for_step and num_computed == self.num_cached_at_start:
            return FIRST_STEP_TOKENS
        if num_produced >= RAMP_STEPS * self.full_step_tokens:
            return self.full_step_tokens
        num_first = max(0, self.num_cached_at_start - self.first_sent)
        if self.waits_for_step or not num_first:
            num_first += FIRST_STEP_TOKENS
        num_waiting = num_produced - self.headroom * max(0, num_produced - num_first)
        return max(MIN_STEP_TOKENS, num_waiting / self.headroom - STEP_COST_TOKENS)

    def _to_chunk_end(self, num_computed: int, wanted: float, num_most: int) -> int:
        """`wanted` tokens, cut to the end of a chunk, and not to so few that the step is slow or leaves one that is."""
        if wanted >= num_most:
            return num_most
        end = num_computed + int(min(wanted, num_most - MIN_STEP_TOKENS / 4))
        on_grid = end - max(0, end - self.first_sent) % self.chunk_tokens
        return (on_grid if on_grid > num_computed else end) - num_computed
