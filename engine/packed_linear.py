"""Float32 products on x86-64 with weights packed once, by kernels that torch brings along. See docs/adr/0002.

Every kind takes the place of the weight: none keeps it beside its packed form. Knows nothing of models.
"""

from __future__ import annotations

import platform
from bisect import bisect_left
from collections import defaultdict
from functools import cache

import torch

from engine.huge_pages import advise_huge_pages

PART_ELEMENTS = 2 << 20
"""Weights of one kernel call. Wider products go in parts: as fast, and looking for their layout stays cheap."""
PART_MULTIPLE = 96
"""Rows of a part are a multiple of this, which all layouts can hold without padding."""
TILES = (4, 8, 12, 16, 20, 24, 28, 32, 40, 48, 64, 96, 128, 192, 256, 512)
"""Rows of x that one kernel call may take. Other numbers are padded to the next, larger ones go in several calls."""
MAX_HALF_ERROR = 5e-7
"""Relative error of a row of weights up to which float16 will do: a float32 sum of some hundred products rounds more."""
_OPERATORS = (
    "_reorder_convolution_weight",
    "_convolution_pointwise",
    "_get_mkldnn_serialized_md",
    "data_ptr",
    "_nbytes",
)
_PLAIN_PRODUCT = ([0, 0], [1, 1], [1, 1], 1)
"""Padding, strides, dilations and groups of a convolution that is a matrix product."""


def can_pack(weight: torch.Tensor) -> bool:
    """Whether the weight is float32 on the CPU and this torch has the kernels for this processor."""
    return (
        weight.dtype == torch.float32
        and weight.device.type == "cpu"
        and platform.machine().lower() in ("x86_64", "amd64")
        and all(hasattr(torch.ops.mkldnn, name) for name in _OPERATORS)
    )


def can_halve(weight: torch.Tensor) -> bool:
    """Whether FBGEMM is there and float16 holds every row of the float32 `weight` to within `MAX_HALF_ERROR`.

    It does for most published models, whose weights have 16 bits: bfloat16 has fewer digits, and weights too small for
    float16 hardly count. Dequantised weights have more digits.
    """
    if torch.backends.quantized.engine not in ("x86", "fbgemm"):
        return False
    return all(_is_half_exact(rows) for rows in torch.split(weight, _part_rows(weight.shape[1])))


def _is_half_exact(rows: torch.Tensor) -> bool:
    # What float16 cannot hold at all has an infinite error.
    error = torch.linalg.vector_norm(rows - rows.half(), dim=1)
    return bool((error <= MAX_HALF_ERROR * torch.linalg.vector_norm(rows, dim=1)).all())


class HalfLinear:
    """Weights in float16, arithmetic in float32: half the bytes per product. For weights that `can_halve`."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._packed = torch.ops.quantized.linear_prepack_fp16(weight, bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`[T, in]` to `[T, out]`."""
        product: torch.Tensor = torch.ops.quantized.linear_dynamic_fp16(x, self._packed)
        return product


class PackedLinear:
    """Weights in oneDNN's layout, in parts that share the columns of the answer. For weights that `can_pack`."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        num_rows = _part_rows(weight.shape[1])
        weights = torch.split(weight, num_rows)
        biases = [None] * len(weights) if bias is None else torch.split(bias, num_rows)
        self._parts = [_Part(*each) for each in zip(weights, biases, strict=True)]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`[T, in]` to `[T, out]`."""
        products = [part(x) for part in self._parts]
        return products[0] if len(products) == 1 else torch.cat(products, dim=1)


def _part_rows(num_columns: int) -> int:
    return max(1, PART_ELEMENTS // num_columns // PART_MULTIPLE) * PART_MULTIPLE


class _Part:
    """A product as a 1 x 1 convolution over an image of T pixels: oneDNN's fastest kernel for few rows.

    Its layout of the weights depends on T and on torch's number of threads, which must be set before. For a T of
    another layout the kernel would pack the weights anew in every call, so x is padded and cut to sizes of one layout.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._tiles = _tiles_of_one_layout(weight.shape[0], weight.shape[1], torch.get_num_threads())
        self._packed = _pack(weight, self._tiles[0])
        advise_huge_pages(torch.ops.mkldnn.data_ptr(self._packed), torch.ops.mkldnn._nbytes(self._packed))
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`[T, in]` to `[T, rows of the part]`."""
        num_rows, largest = x.shape[0], self._tiles[-1]
        if num_rows > largest:
            return torch.cat([self(piece) for piece in torch.split(x, largest)])
        tile = self._tiles[bisect_left(self._tiles, num_rows)]
        if tile != num_rows:
            x = torch.nn.functional.pad(x, (0, 0, 0, tile - num_rows))
        image = x.reshape(1, 1, tile, -1).permute(0, 3, 1, 2)
        product: torch.Tensor = torch.ops.mkldnn._convolution_pointwise(
            image, self._packed, self._bias, *_PLAIN_PRODUCT, "none", [], ""
        )
        return product.permute(0, 2, 3, 1).reshape(tile, -1)[:num_rows]


def _pack(weight: torch.Tensor, num_rows: int) -> torch.Tensor:
    """`weight` in the layout that oneDNN wants for `num_rows` rows of x."""
    kernel = weight[:, :, None, None]
    packed: torch.Tensor = torch.ops.mkldnn._reorder_convolution_weight(
        kernel, *_PLAIN_PRODUCT, [1, weight.shape[1], 1, num_rows]
    )
    return packed


@cache
def _tiles_of_one_layout(num_rows: int, num_columns: int, num_threads: int) -> tuple[int, ...]:
    """The largest set of `TILES` with one layout of weights `[num_rows, num_columns]`, ascending.

    `num_threads` is what torch is set to: oneDNN's choice depends on it.
    """
    weight = torch.zeros(num_rows, num_columns)
    found: defaultdict[bytes, list[int]] = defaultdict(list)
    for tile in TILES:
        layout = torch.ops.mkldnn._get_mkldnn_serialized_md(_pack(weight, tile))
        found[bytes(layout.tolist())].append(tile)
    return max(map(tuple, found.values()), key=len)
