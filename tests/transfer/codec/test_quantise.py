"""The numbers themselves: grids that hold what they were made from, codes on the nearest point, planes that halve errors."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from protocol.errors import TransferError
from transfer.codec.bits import (
    join_high_nibbles,
    join_low_nibbles,
    pack_plane,
    split_nibbles,
    split_refined,
    unpack_plane,
)
from transfer.codec.quantise import (
    MAX_4_BITS,
    MAX_8_BITS,
    MAX_FP8,
    fit_grid,
    fit_scale,
    fp8_codes,
    fp8_values,
    lowest_and_highest,
    plane_middles,
    refined_codes,
    refined_values,
    require_finite,
    signed_codes,
    signed_values,
)

TINY = 2.0**-126
"""Numbers that are nearer to 0 than this count as 0: torch's kernels may do so too."""
FLOATS = st.floats(-60000, 60000, width=32)
VECTORS = st.lists(FLOATS, min_size=1, max_size=20).map(lambda many: torch.tensor(many, dtype=torch.float32))


@settings(max_examples=100, deadline=None)
@given(VECTORS, st.integers(0, 4))
def test_each_plane_halves_the_error(values: torch.Tensor, num_planes: int) -> None:
    """With k planes a value is within 2^-(k+1) steps, for any numbers that float16 spans, denormal ones too."""
    grid = fit_grid(*lowest_and_highest(values, 0))
    codes = refined_codes(values.clone(), grid) & (0xF0 | 0xF0 >> num_planes)
    found = refined_values(codes, plane_middles(torch.tensor([num_planes])), grid)
    allowed = grid.step.double() * 2.0 ** -(num_planes + 1) * (1 + 1e-5) + values.abs().double() * 2.0**-23 + TINY
    assert bool(((found.double() - values.double()).abs() <= allowed).all())


@settings(max_examples=100, deadline=None)
@given(VECTORS)
def test_a_grid_holds_everything_that_it_was_made_from(values: torch.Tensor) -> None:
    """The minimum is not above the lowest value, sixteen codes reach the highest, and neither is wider than it must be."""
    lowest, highest = lowest_and_highest(values, 0)
    grid = fit_grid(lowest, highest)
    minimum, step = float(grid.minimum), float(grid.step)
    assert minimum <= float(lowest) + TINY
    assert minimum + 15 * step >= float(highest) - (abs(float(highest)) + abs(minimum)) * 2.0**-23 - TINY
    assert float(np.nextafter(np.float16(minimum), np.float16(np.inf))) > float(lowest)


@pytest.mark.parametrize("value", [0.0, 1.0, -2.5, 65504.0, -65504.0, 2.0**-24])
def test_a_constant_that_float16_has_is_exact(value: float) -> None:
    """Its step is 0: every code means the value itself."""
    values = torch.full((5,), value)
    grid = fit_grid(*lowest_and_highest(values, 0))
    assert float(grid.step) == 0.0
    found = refined_values(refined_codes(values.clone(), grid), plane_middles(torch.tensor([4])), grid)
    assert torch.equal(found, values)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), -65600.0, 1.2e6])
def test_what_float16_cannot_hold_is_an_error(bad: float) -> None:
    """Minimum or step beyond float16, and what is no number, raise."""
    with pytest.raises(TransferError, match="not sent lossily"):
        require_finite(torch.cat(fit_grid(*lowest_and_highest(torch.tensor([0.0, bad, 1.0]), 0))))


@settings(max_examples=100, deadline=None)
@given(VECTORS, st.sampled_from([MAX_8_BITS, MAX_4_BITS]))
def test_signed_codes_are_within_half_a_scale(values: torch.Tensor, max_code: float) -> None:
    """No code leaves its range, and no value its half step."""
    scale = fit_scale(values.abs().amax(), max_code)
    codes = signed_codes(values.clone(), scale)
    assert int(codes.abs().max()) <= max_code
    allowed = scale.double() / 2 * (1 + 1e-5) + values.abs().double() * 2.0**-23 + TINY
    assert bool(((signed_values(codes, scale).double() - values.double()).abs() <= allowed).all())


@settings(max_examples=100, deadline=None)
@given(VECTORS)
def test_fp8_values_are_those_of_torch(values: torch.Tensor) -> None:
    """The table that stands for torch's conversion has its numbers, and the error is a sixteenth of a value at most."""
    scale = fit_scale(values.abs().amax(), MAX_FP8)
    codes = fp8_codes(values.clone(), scale)
    assert torch.equal(fp8_values(codes, scale), codes.float() * scale.float())
    allowed = torch.maximum(values.abs() / 16 * (1 + 1e-5), scale.float() * 2.0**-10)
    assert bool(((fp8_values(codes, scale) - values).abs() <= allowed).all())


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 3), st.integers(1, 40), st.integers(0, 2**31))
def test_nibbles_and_planes_come_back(num_layers: int, num_elements: int, seed: int) -> None:
    """Joined, packed bit by bit and split again, the codes of K and V are what they were; lengths need not be even."""
    generator = torch.Generator().manual_seed(seed)
    keys, values = torch.randint(0, 256, (2, num_layers, num_elements), generator=generator, dtype=torch.uint8)
    base, rest = join_high_nibbles(keys, values), join_low_nibbles(keys, values)
    found = torch.zeros_like(rest)
    for plane in range(1, 5):
        packed = pack_plane(rest, plane)
        assert packed.shape == (num_layers, -(-num_elements // 4))
        found |= unpack_plane(packed, plane, num_elements)
    assert torch.equal(found, rest)
    assert all(torch.equal(*pair) for pair in zip(split_refined(base, found), (keys, values), strict=True))
    assert all(torch.equal(*pair) for pair in zip(split_nibbles(rest), (keys & 15, values & 15), strict=True))
    assert all(torch.equal(*pair) for pair in zip(split_refined(base, None), (keys & 240, values & 240), strict=True))


@settings(max_examples=60, deadline=None)
@given(st.floats(-1000, 1000, width=16), st.floats(-1000, 1000, width=16), st.integers(0, 4))
def test_the_ends_of_a_grid_are_exact_and_a_crowd_beside_them_stays_there(
    end: float, outlier: float, num_planes: int
) -> None:
    """One outlier and a crowd at the other end: planes leave both where they are, and never move the crowd farther."""
    assume(abs(end - outlier) > 0.5)
    crowd = torch.tensor([end, end + (outlier - end) / 1000, end + (outlier - end) / 500, outlier])
    grid = fit_grid(*lowest_and_highest(crowd, 0))
    codes = refined_codes(crowd.clone(), grid) & (0xF0 | 0xF0 >> num_planes)
    found = refined_values(codes, plane_middles(torch.tensor([num_planes])), grid)
    step = float(grid.step)
    ends = torch.cat([grid.minimum.float(), grid.minimum.float() + 15 * grid.step.float()])
    assert set(found[[0, 3]].tolist()) == set(ends.tolist())
    spread = float((crowd[:3] - found[0]).abs().max())
    assert float((found[:3] - crowd[:3]).abs().max()) <= max(spread, step / 2 ** (num_planes + 2)) + step / 100
