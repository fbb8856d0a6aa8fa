"""Products with packed weights against torch's own, and the choice between their kinds."""

from __future__ import annotations

import pytest
import torch

from engine.linear import PlainLinear, make_linear
from engine.packed_linear import PART_ELEMENTS, HalfLinear, PackedLinear, can_halve, can_pack

CPU = torch.device("cpu")
IS_PACKING = can_pack(torch.zeros(1, 1))
IS_HALVING = IS_PACKING and can_halve(torch.zeros(1, 1))
NUM_ROWS = (1, 2, 3, 4, 5, 8, 13, 16, 31, 33, 64, 100, 257, 520)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _weight(num_out: int, num_in: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(num_out * 10_007 + num_in)
    return (torch.randn(num_out, num_in, generator=generator) * 0.02).to(dtype)


def _assert_equals_plain(weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """Within what rounding in sums of float32 costs: the same share of the absolute values that are added up."""
    product, plain = make_linear(weight, bias, CPU), PlainLinear(weight, bias)
    absolute = PlainLinear(weight.abs(), None if bias is None else bias.abs())
    for num_rows in NUM_ROWS:
        x = torch.randn(num_rows, weight.shape[1], generator=torch.Generator().manual_seed(num_rows))
        wanted = plain(x)
        found = product(x)
        assert found.shape == wanted.shape
        assert ((found - wanted).abs() <= 2e-6 * absolute(x.abs())).all()


@pytest.mark.parametrize(("num_out", "num_in"), [(96, 64), (97, 63), (1, 5), (7, 1), (960, 576), (576, 1536)])
@pytest.mark.parametrize("has_bias", [False, True])
def test_packed_weights_give_the_same_product(num_out: int, num_in: int, has_bias: bool) -> None:
    """For any number of rows: fewer than a tile, between two, and more than the largest."""
    weight = _weight(num_out, num_in)
    bias = _weight(1, num_out)[0] if has_bias else None
    _assert_equals_plain(weight, bias)


@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_in_parts_equals_one_in_one_piece(has_bias: bool) -> None:
    """A weight of more than `PART_ELEMENTS`, the last part smaller, keeps the order of its columns and its bias."""
    weight = _weight(PART_ELEMENTS // 512 + 100, 512)
    bias = _weight(1, len(weight))[0] if has_bias else None
    _assert_equals_plain(weight, bias)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_weights_of_16_bits_give_the_same_product(dtype: torch.dtype, has_bias: bool) -> None:
    """Kept in 16 bits or not, the answer is that of float32."""
    weight = _weight(193, 96, dtype).float()
    bias = _weight(1, 193)[0] if has_bias else None
    _assert_equals_plain(weight, bias)


@pytest.mark.skipif(not IS_HALVING, reason="this torch has no float16 products on this processor")
def test_only_exact_weights_are_kept_in_16_bits() -> None:
    """One weight with more digits, too large or not a number, and the whole matrix stays in float32."""
    exact = _weight(64, 32, torch.bfloat16).float()
    assert isinstance(make_linear(exact, None, CPU), HalfLinear)
    for wrong in (0.02 + 1e-6, 1e6, float("nan")):
        weight = exact.clone()
        weight[40, 3] = wrong
        assert not can_halve(weight)
        assert isinstance(make_linear(weight, None, CPU), PackedLinear)


def test_zeros_are_exact() -> None:
    """A row of zeros has no error, and no division by its length."""
    product = make_linear(torch.zeros(5, 8), None, CPU)
    assert torch.equal(product(torch.ones(3, 8)), torch.zeros(3, 5))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_dtypes_are_left_to_torch(dtype: torch.dtype) -> None:
    """Only float32 is packed; the answer has the weight's dtype."""
    product = make_linear(_weight(6, 4, dtype), None, CPU)
    assert isinstance(product, PlainLinear)
    assert product(torch.ones(2, 4, dtype=dtype)).dtype == dtype


def test_strided_rows_are_taken() -> None:
    """x may be a view whose rows are not side by side."""
    weight = _weight(12, 8)
    x = torch.randn(16, 5)[::2].t()
    torch.testing.assert_close(make_linear(weight, None, CPU)(x), x @ weight.t(), atol=1e-6, rtol=1e-5)


@pytest.mark.skipif(not IS_PACKING, reason="nothing is packed on this processor")
def test_runs_in_and_out_of_inference_mode() -> None:
    """Packed in one mode, used in another."""
    weight = _weight(48, 24)
    with torch.inference_mode():
        product = make_linear(weight, None, CPU)
        x = torch.ones(2, 24)
        torch.testing.assert_close(product(x), x @ weight.t(), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(product(torch.ones(2, 24)), torch.ones(2, 24) @ weight.t(), atol=1e-6, rtol=1e-5)
