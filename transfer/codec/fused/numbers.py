"""Triton functions: cache elements to float32 and back, grids, codes. What `quantise` has for tensors, for tiles.

The arithmetic is that of `quantise`, operation by operation, and rounds where it rounds: divisions are IEEE's, and what is
multiplied before it is added is exact, or compiled without fused multiply-add. Conversions to and from bfloat16 are done on
the bits, which is exact on every backend. Elements come and go as the bits of their dtype where that is bfloat16.
"""

# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

FLOAT32 = tl.constexpr(0)
FLOAT16 = tl.constexpr(1)
BFLOAT16 = tl.constexpr(2)
_MAX_HALF = tl.constexpr(65504.0)


@triton.jit
def to_float32(elements, KIND: tl.constexpr):
    """Cache elements as float32. NaN becomes infinity: reductions would lose it, and neither is ever sent."""
    found = elements.to(tl.float32)
    if KIND == BFLOAT16:
        found = (elements.to(tl.int32) << 16).to(tl.float32, bitcast=True)
    return tl.where(found == found, found, float("inf"))


@triton.jit
def to_elements(numbers, KIND: tl.constexpr):
    """Finite float32 as cache elements, rounded to the nearest, ties to even; float16's largest number for what is beyond."""
    if KIND == BFLOAT16:
        bits = numbers.to(tl.int32, bitcast=True)
        found = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).to(tl.int16)
    elif KIND == FLOAT16:
        found = tl.minimum(tl.maximum(numbers, -_MAX_HALF), _MAX_HALF).to(tl.float16)
    else:
        found = numbers
    return found


@triton.jit
def fit_minimum(lowest):
    """The largest float16 that is not above a float32; a zero has no sign."""
    half = lowest.to(tl.float16)
    bits = half.to(tl.int16, bitcast=True).to(tl.int32)
    below = (bits + tl.where(half > 0, -1, 1)).to(tl.int16).to(tl.float16, bitcast=True)
    found = tl.where(half.to(tl.float32) > lowest, below, half)
    return tl.where(found == 0, 0.0, found).to(tl.float16)


@triton.jit
def fit_step(minimum, highest):
    """A fifteenth of the range from a float16 minimum, rounded up to float16; a zero has no sign."""
    step = tl.math.div_rn(highest - minimum.to(tl.float32), 15.0)
    half = step.to(tl.float16)
    bits = half.to(tl.int16, bitcast=True).to(tl.int32)
    above = (bits + tl.where(half < 0, -1, 1)).to(tl.int16).to(tl.float16, bitcast=True)
    found = tl.where(half.to(tl.float32) < step, above, half)
    return tl.where(found == 0, 0.0, found).to(tl.float16)


@triton.jit
def refined_codes(numbers, minimum, step):
    """int32: refined codes of 0 to 255, the 4-bit code in the high half and its four planes in the low one."""
    width = step.to(tl.float32)
    per_half = tl.where(width > 0, tl.math.div_rn(1.0, tl.where(width > 0, width, 1.0)) * 32.0, 0.0)
    scaled = (numbers - minimum.to(tl.float32)) * per_half
    inner = tl.minimum(tl.maximum(scaled, 16.0), 464.0)
    return tl.minimum(scaled - inner * 0.5 + 8.0, 255.0).to(tl.int32)


@triton.jit
def refined_values(codes, middles, minimum, step):
    """float32 values of refined codes (int32), each read at the middle of what its planes leave open."""
    highest = (240.0 - 2.0 * middles).to(tl.int32)
    widened = codes.to(tl.float32) + middles
    widened = tl.where(codes == 0, -8.0, tl.where(codes == highest, 248.0, widened))
    inner = tl.minimum(tl.maximum(widened, 8.0), 232.0)
    return (widened + inner) * (step.to(tl.float32) * 0.03125) + minimum.to(tl.float32)
