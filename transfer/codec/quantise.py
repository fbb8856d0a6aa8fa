"""Numbers to codes and back, on any device. Pure functions of tensors: pools, tokens and bytes are not known here.

Parameters are rounded to float16 first and codes are computed with what the receiver will read, so that both sides mean
the same. They are rounded outwards (a minimum down, a step up): no value lies outside of the codes, and the error of a code
is at most half of its step, whatever the values.

Sources: per channel for K and per token for V is KIVI's finding (arXiv 2402.02750); symmetric per token and head is
SpectrumKV's quantiser (arXiv 2606.08635); the refinement of a rounded base by bit planes is kvferry's own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from protocol.errors import TransferError

MAX_HALF = 65504.0
LEVELS = 15
"""The highest 4-bit code: a step is the range over this."""
MAX_8_BITS, MAX_4_BITS, MAX_FP8 = 127.0, 7.0, 448.0
_LEAST_MAGNITUDE = 1e-8
_EXPONENTS = {torch.float16: 0x7C00, torch.bfloat16: 0x7F80}
_FINEST = 16
"""Parts of a step that four planes tell apart."""
_FIRST_EDGE = _FINEST // 2
_LAST_EDGE = _FINEST * LEVELS - _FINEST // 2
"""Where the inner cells begin and end, in sixteenths of a step from the minimum."""


class Grid(NamedTuple):
    """Where codes lie: code c is `minimum + c * step`. Both float16, of one shape that broadcasts over the values."""

    minimum: torch.Tensor
    step: torch.Tensor


def fit_grid(lowest: torch.Tensor, highest: torch.Tensor) -> Grid:
    """The grid of 16 codes that holds all values between two float32 tensors. A step is 0 where one code is exact.

    NaN, infinity, and what float16 cannot hold, make a grid that is not finite: see `require_finite`.
    """
    minimum = _half_below(lowest)
    return Grid(minimum, _half_above((highest - minimum.float()) / LEVELS))


def fit_scale(magnitude: torch.Tensor, max_code: float) -> torch.Tensor:
    """float16 scales, by which values up to `magnitude` (float32) become codes up to `max_code`. As `fit_grid`, they are
    not finite where they cannot be.
    """
    return _half_above(magnitude.clamp(min=_LEAST_MAGNITUDE) / max_code)  # `clamp` keeps NaN


def refined_codes(values: torch.Tensor, grid: Grid) -> torch.Tensor:
    """uint8: the rounded 4-bit code in the high half, four planes of what it leaves in the low half, highest first.

    `values` is float32 and is overwritten. With t = (value - minimum) / step, codes 1 to 14 are those of floor(16 * t + 8):
    adding half a step before the base is cut off rounds it, and what is cut off lies within half a step of it. The cells of
    codes 0 and 15 end at the grid's ends, so that they are half as wide; their planes divide that half. Values crowd there:
    where one outlier makes a grid, all others lie at its other end.
    """
    per_half = torch.where(grid.step > 0, 2 * _FINEST / grid.step.float(), 0.0)
    values.sub_(grid.minimum.float()).mul_(per_half)  # 2 * 16 * t
    inner = values.clamp(2 * _FIRST_EDGE, 2 * _LAST_EDGE)
    # 2 * 16 * t - 16 * t within, and twice the distance from the edge in the outermost cells.
    return values.sub_(inner, alpha=0.5).add_(_FIRST_EDGE).clamp_(max=255).to(torch.uint8)


def plane_middles(num_planes: torch.Tensor) -> torch.Tensor:
    """float32: what to add to a refined code whose bits after its planes (0 to 4, int64) are zero, for its middle.

    In sixteenths of a step from the minimum. Without planes the code itself is the value.
    """
    return torch.exp2(3.0 - num_planes.float()) - _FINEST // 2


def refined_values(codes: torch.Tensor, middles: torch.Tensor, grid: Grid) -> torch.Tensor:
    """float32 values of refined codes (uint8), given `plane_middles` of a shape that broadcasts over them.

    In the outermost cells, where parts are half as wide, k planes tell 2^k values apart that lie evenly from the grid's end
    inwards: what made the grid stays exact.
    """
    narrowed = _FIRST_EDGE / (_FIRST_EDGE - middles)
    beyond = codes.float().add_(middles)  # sixteenths of a step from the minimum, but for the outermost cells
    inner = beyond.clamp(_FIRST_EDGE, _LAST_EDGE)
    sixteenths = beyond.sub_(inner).mul_(narrowed).add_(inner)
    return sixteenths.mul_(grid.step.float() / _FINEST).add_(grid.minimum.float())


def signed_codes(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """int8: values (float32, overwritten) over a scale of `fit_scale`, rounded."""
    return values.div_(scale.float()).round_().to(torch.int8)


def fp8_codes(values: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """e4m3 numbers: values (float32, overwritten) over a scale of `fit_scale`."""
    return values.div_(scale.float()).to(torch.float8_e4m3fn)


def signed_values(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float32 values of `signed_codes`."""
    return codes.float().mul_(scale.float())


def fp8_values(codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float32 values of `fp8_codes`."""
    # torch converts e4m3 on a CPU several times slower than it looks the 256 numbers up.
    numbers = torch.arange(256, dtype=torch.uint8, device=codes.device).view(torch.float8_e4m3fn).float()
    return numbers[codes.view(torch.uint8).int()].mul_(scale.float())


def lowest_and_highest(values: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Extremes over one dimension, which stays with length 1. NaN wins over every number."""
    # Two passes: torch's `aminmax` is ten times slower than both on a CPU.
    return values.amin(dim, keepdim=True), values.amax(dim, keepdim=True)


def largest_magnitude(values: torch.Tensor, dim: int) -> torch.Tensor:
    """The largest absolute value over one dimension, which stays with length 1. NaN wins over every number."""
    lowest, highest = lowest_and_highest(values, dim)
    return torch.maximum(lowest.neg_(), highest)


def to_16_bits(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Float32 values in a 16-bit dtype. Raises `TransferError` for NaN, infinity, and what does not fit."""
    require_within(values.amin(), values.amax(), torch.finfo(dtype).max)
    return values.to(dtype)


def require_within(lowest: torch.Tensor, highest: torch.Tensor, limit: float) -> None:
    """Raises `TransferError` unless all values between these extremes lie between `-limit` and `limit`; NaN does not."""
    if not bool(((highest <= limit) & (lowest >= -limit)).all()):
        raise TransferError(f"the KV holds NaN, infinity, or values beyond {limit:g}: it is not sent lossily")


def require_finite(parameters: torch.Tensor) -> None:
    """Raises `TransferError` unless all float16 grids or scales of a chunk are numbers."""
    if not is_finite(parameters):
        raise TransferError("the KV holds NaN, infinity, or values that float16 cannot hold: it is not sent lossily")


def is_finite(numbers: torch.Tensor) -> bool:
    """Whether none of some 16-bit numbers is infinite or not a number: those have all bits of the exponent."""
    exponent = _EXPONENTS[numbers.dtype]
    return not bool((numbers.view(torch.int16).bitwise_and(exponent) == exponent).any())


def _half_below(values: torch.Tensor) -> torch.Tensor:
    """The largest float16 that is not above a float32."""
    half = values.to(torch.float16)
    return torch.where(half.float() > values, _neighbour(half, towards_zero=half > 0), half)


def _half_above(values: torch.Tensor) -> torch.Tensor:
    """The smallest float16 that is not below a float32."""
    half = values.to(torch.float16)
    return torch.where(half.float() < values, _neighbour(half, towards_zero=half < 0), half)


def _neighbour(half: torch.Tensor, *, towards_zero: torch.Tensor) -> torch.Tensor:
    """The next float16 in magnitude: their bits, read as integers, are in the order of magnitude."""
    # A zero that was rounded to keeps the sign of what it was, so that one step up in magnitude is right for it too.
    bits = half.view(torch.int16)
    return torch.where(towards_zero, bits - 1, bits + 1).view(torch.float16)
