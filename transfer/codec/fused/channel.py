"""The arithmetic of the `channel` codec as launches of Triton kernels: what `channel_torch` does, in fewer passes over memory.

Encoding reads K twice, the second time from the GPU's cache, and V once, writes a byte of K's codes and reads it back, writes
the base and a byte of low nibbles, and reads that byte once for each plane (of the tokens that have it). Decoding is a single
pass: it reads base and planes and writes the pool. The reference makes some twenty passes each way, most of them in float32.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch

from transfer.codec.channel_parts import Coded, Parts
from transfer.codec.fused import channel_kernels as kernels
from transfer.codec.fused import numbers
from transfer.codec.quantise import plane_middles, require_within
from transfer.codec.rows import indices
from transfer.codec.tiers import NUM_PLANES

_KINDS = {
    torch.float32: numbers.FLOAT32.value,
    torch.float16: numbers.FLOAT16.value,
    torch.bfloat16: numbers.BFLOAT16.value,
}
_TOKENS, _ELEMENTS = 32, 64
"""Sides of a tile."""
_PACKED_BYTES = 512
"""Bytes of a plane that one program writes."""
_OPTIONS = {"enable_fp_fusion": False}
"""A product that the reference rounds before a sum is rounded here too."""


class TritonOperations:
    """Kernels over a pool in CUDA memory, or in the host's where Triton interprets them."""

    def encode(self, coded: Coded, parts: Parts, limit: float) -> None:
        """As `ChannelOperations.encode`."""
        num_layers, num_tokens, row = parts.base.shape
        num_groups, num_heads = parts.keys.minimum.shape[1], parts.values.minimum.shape[2]
        pool, shape = _pool(coded), _shape(coded)
        refined = torch.empty_like(parts.base)
        farthest = torch.zeros(1, dtype=torch.float32, device=refined.device)
        sizes = (limit, num_tokens, num_groups, coded.rows.flat[0, 0].numel())
        with _on(refined.device):
            kernels.encode_keys[num_groups, _blocks(row, _ELEMENTS), num_layers](
                *pool, *parts.keys, refined, farthest, *sizes, **shape, TOKENS=_TOKENS, ELEMENTS=_ELEMENTS, **_OPTIONS
            )
            head = row // num_heads
            side = {"HEAD": head, "TOKENS": _TOKENS, "ELEMENTS": 1 << (head - 1).bit_length()}
            kernels.encode_values[_blocks(num_tokens, _TOKENS), num_heads, num_layers](
                *pool, *parts.values, refined, parts.base, farthest, *sizes, **shape, **side, **_OPTIONS
            )
            _pack(coded, parts, refined)
        if limit < torch.inf:
            require_within(-farthest, farthest, limit)

    def decode(self, coded: Coded, parts: Parts) -> None:
        """As `ChannelOperations.decode`."""
        num_layers, num_tokens, row = parts.base.shape
        num_groups, num_heads = parts.keys.minimum.shape[1], parts.values.minimum.shape[2]
        having = coded.num_planes >= np.arange(1, NUM_PLANES + 1)[:, None]
        ranks = _int32(having.cumsum(1) - 1, parts.base.device)
        middles = plane_middles(torch.from_numpy(coded.num_planes)).to(parts.base.device)
        tokens = (ranks, _int32(coded.num_planes, parts.base.device), middles)
        lengths = [max(1, plane.shape[1]) for plane in parts.planes]
        sizes = (num_tokens, num_groups, coded.rows.flat[0, 0].numel())
        side = {"HEAD": row // num_heads, "TOKENS": _TOKENS, "ELEMENTS": _ELEMENTS}
        with _on(parts.base.device):
            kernels.decode[_blocks(num_tokens, _TOKENS), _blocks(row, _ELEMENTS), num_layers](
                *_pool(coded), *parts.keys, *parts.values, parts.base, *parts.planes, *lengths, *tokens, *sizes,
                **_shape(coded), **side, **_OPTIONS,
            )  # fmt: skip


def _pack(coded: Coded, parts: Parts, rest: torch.Tensor) -> None:
    num_layers, num_tokens, row = parts.base.shape
    for plane, packed in enumerate(parts.planes, start=1):
        if packed.numel():
            having = np.flatnonzero(coded.num_planes >= plane)
            length = packed.shape[1]
            kernels.pack_plane[_blocks(length, _PACKED_BYTES), 1, num_layers](
                rest, _int32(having, rest.device), packed, NUM_PLANES - plane, num_tokens, len(having) * row, length,
                ROW=row, BYTES=_PACKED_BYTES, **_OPTIONS,
            )  # fmt: skip


def _pool(coded: Coded) -> tuple[torch.Tensor, torch.Tensor]:
    """The pool's elements, those of bfloat16 as their bits, and where in them the tokens lie."""
    flat = coded.rows.flat
    return flat.view(torch.int16) if flat.dtype == torch.bfloat16 else flat, coded.rows.slots


def _shape(coded: Coded) -> dict[str, Any]:
    flat = coded.rows.flat
    return {"KIND": _KINDS[flat.dtype], "ROW": flat.shape[3]}


def _int32(numbers_: np.typing.NDArray[np.int64], device: torch.device) -> torch.Tensor:
    return indices(numbers_.astype(np.int32), device)


def _blocks(length: int, side: int) -> int:
    return -(-length // side)


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Triton launches on the device that is current."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
