"""Triton functions that all kernels share: where tokens lie in a pool, and word of values that are too large."""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]


@triton.jit
def places_of(slots, tokens, is_token, elements, half_elements, which, ROW: tl.constexpr):
    """Where a tile `[token, element]` lies in the pool: of K (0) or V (1) of the layer that the grid's last axis says.

    A token's elements lie at `slots[token] * ROW` of its layer's K or V, which are `half_elements` long each.
    """
    start = (tl.program_id(2).to(tl.int64) * 2 + which) * half_elements
    rows = tl.load(slots + tokens, mask=is_token, other=0) * ROW
    return start + rows[:, None] + elements[None, :]


@triton.jit
def note_beyond(farthest, lowest, highest, limit):
    """Stores infinity where a value is beyond the limit: whoever stores it, it is the same number."""
    is_beyond = tl.max(((highest > limit) | (lowest < -limit)).to(tl.int32), axis=0)
    tl.store(farthest, float("inf"), mask=is_beyond > 0)
