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
_WHOLE = tl.constexpr(1.5 * 2**23)
"""Added and taken away again it leaves a float32 of less than 2^22 rounded to a whole number, ties to even."""


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
def _half_above(numbers):
    """The smallest float16 that is not below a float32; a zero has no sign."""
    half = numbers.to(tl.float16)
    bits = half.to(tl.int16, bitcast=True).to(tl.int32)
    above = (bits + tl.where(half < 0, -1, 1)).to(tl.int16).to(tl.float16, bitcast=True)
    found = tl.where(half.to(tl.float32) < numbers, above, half)
    return tl.where(found == 0, 0.0, found).to(tl.float16)


@triton.jit
def fit_step(minimum, highest):
    """A fifteenth of the range from a float16 minimum, rounded up to float16."""
    return _half_above(tl.math.div_rn(highest - minimum.to(tl.float32), 15.0))


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
    narrowed = tl.math.div_rn(middles * 0.0 + 8.0, 8.0 - middles)
    beyond = codes.to(tl.float32) + middles
    inner = tl.minimum(tl.maximum(beyond, 8.0), 232.0)
    return ((beyond - inner) * narrowed + inner) * (step.to(tl.float32) * 0.0625) + minimum.to(tl.float32)


@triton.jit
def fit_scale(magnitude, max_code):
    """float16 scales that bring magnitudes to `max_code`, rounded up."""
    return _half_above(tl.math.div_rn(tl.maximum(magnitude, 1e-8), max_code))


@triton.jit
def signed_codes(numbers, scale):
    """int32: the nearest whole multiples of a scale, ties to even, of less than 2^22 in magnitude."""
    quotient = tl.math.div_rn(numbers, scale.to(tl.float32))
    return (quotient + _WHOLE - _WHOLE).to(tl.int32)


@triton.jit
def e4m3_codes(numbers, scale):
    """int32: the bytes of the nearest e4m3fn numbers of quotients up to 448, ties to even."""
    bits = tl.math.div_rn(numbers, scale.to(tl.float32)).to(tl.int32, bitcast=True)
    size = bits & 0x7FFFFFFF
    normal = ((size + 0x7FFFF + ((size >> 20) & 1)) >> 20) - 960
    smallest = (size.to(tl.float32, bitcast=True) * 512.0 + _WHOLE - _WHOLE).to(tl.int32)
    return tl.where(size < 0x3C800000, smallest, normal) | ((bits >> 24) & 0x80)


@triton.jit
def e4m3_values(codes):
    """float32 numbers of e4m3fn bytes (int32) that are numbers."""
    size = codes & 0x7F
    normal = ((size + 960) << 20).to(tl.float32, bitcast=True)
    found = tl.where(size < 8, size.to(tl.float32) * 0.001953125, normal)
    return tl.where(codes > 0x7F, -found, found)
