"""How the kernels are launched over a pool: tiles, compiler options, and the arguments that all of them have."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from transfer.codec.fused import numbers
from transfer.codec.rows import TokenRows, indices

TILE_TOKENS, TILE_ELEMENTS = 32, 64
OPTIONS = {"enable_fp_fusion": False}
"""A product that the reference rounds before a sum is rounded here too."""
_KINDS = {
    torch.float32: numbers.FLOAT32.value,
    torch.float16: numbers.FLOAT16.value,
    torch.bfloat16: numbers.BFLOAT16.value,
}


def pool_of(rows: TokenRows) -> tuple[torch.Tensor, torch.Tensor]:
    """The pool's elements, those of bfloat16 as their bits, and where in them the tokens lie."""
    flat = rows.flat
    return flat.view(torch.int16) if flat.dtype == torch.bfloat16 else flat, rows.slots


def half_elements(rows: TokenRows) -> int:
    """Elements of K, or of V, of one layer of the whole pool."""
    return rows.flat[0, 0].numel()


def shape_of(rows: TokenRows, num_heads: int) -> dict[str, Any]:
    """Constants of a pool's dtype and shape, and the tokens of a tile."""
    row = rows.flat.shape[3]
    return {"KIND": _KINDS[rows.flat.dtype], "ROW": row, "HEAD": row // num_heads, "TOKENS": TILE_TOKENS}


def whole_head(row: int, num_heads: int) -> int:
    """The elements of a tile that holds a head: a power of two, as Triton wants it."""
    return 1 << (row // num_heads - 1).bit_length()


def num_tiles(length: int, side: int) -> int:
    """Tiles that cover a length."""
    return -(-length // side)


def int32(positions: npt.NDArray[Any], device: torch.device) -> torch.Tensor:
    """Small whole numbers on a device."""
    return indices(positions.astype(np.int32), device)


def on(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the device that is current."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
