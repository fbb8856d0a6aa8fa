"""A payload's memory as arrays, on the device where the codes are made; and tier 1, which all lossy codecs share."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from protocol.errors import BadChunk
from protocol.layout import KvDtype
from transfer.codec.codec import ChunkPlan
from transfer.codec.pool_view import PoolView
from transfer.codec.quantise import is_finite, require_finite, to_16_bits
from transfer.codec.rows import KEY, VALUE, TokenRows
from transfer.codec.sizes import padded, row_elements
from transfer.codec.tiers import TIER_16_BITS


class Canvas:
    """A payload as bytes on a device: on a CPU the slot itself, elsewhere a copy that `flush` brings home."""

    def __init__(self, payload: memoryview, device: torch.device, *, is_read: bool) -> None:
        self._home = torch.frombuffer(payload, dtype=torch.uint8)
        if device.type == "cpu":
            self._raw = self._home
        else:
            self._raw = (
                self._home.to(device) if is_read else torch.zeros(len(payload), dtype=torch.uint8, device=device)
            )

    def flush(self) -> None:
        """Copies what was drawn into the slot, where it is not there already."""
        if self._raw is not self._home:
            self._home.copy_(self._raw)

    def array(self, offset: int, dtype: torch.dtype, shape: Sequence[int]) -> torch.Tensor:
        """Part of the payload, in place."""
        return self._raw[offset : offset + math.prod(shape) * dtype.itemsize].view(dtype).view(*shape)


def parameters(plan: ChunkPlan, canvas: Canvas) -> torch.Tensor:
    """All scales of a lossy chunk, of whatever kind: float16."""
    return canvas.array(plan.sizes.scales_offset, torch.float16, (plan.sizes.scale_bytes // torch.float16.itemsize,))


def finish(plan: ChunkPlan, canvas: Canvas) -> None:
    """Ends a chunk that was written. Raises `TransferError` when it came from values that cannot be sent."""
    # Once a chunk rather than at each layer: a value that is not finite shows in its grid or scale.
    require_finite(parameters(plan, canvas))
    canvas.flush()


def segment_offsets(plan: ChunkPlan) -> list[int]:
    """Where each segment begins, from the start of the payload."""
    sizes = plan.sizes
    steps = np.cumsum([0, *(padded(size) for size in sizes.segment_sizes[:-1])])
    return [sizes.segments_offset + int(step) for step in steps]


def exact_dtype(wire_dtype: KvDtype) -> torch.dtype:
    """The element type of tier 1."""
    return torch.bfloat16 if wire_dtype is KvDtype.BFLOAT16 else torch.float16


def exact_array(plan: ChunkPlan, canvas: Canvas) -> torch.Tensor:
    """The segment of tier 1, the first of every lossy codec: `[layer, k|v, token, kv_head * head_dim]`."""
    num_tokens = int((plan.tiers == TIER_16_BITS).sum())
    dtype = exact_dtype(plan.identity.wire_dtype)
    return canvas.array(
        plan.sizes.segments_offset, dtype, (plan.layout.num_layers, 2, num_tokens, row_elements(plan.layout))
    )


def write_exact(plan: ChunkPlan, source: PoolView, canvas: Canvas) -> None:
    """Tokens of tier 1 into their segment. Raises `TransferError` for values that are not finite or do not fit."""
    segment = exact_array(plan, canvas)
    if segment.numel():
        rows = TokenRows(source, plan.identity, np.flatnonzero(plan.tiers == TIER_16_BITS))
        for layers in rows.blocks():
            for which in (KEY, VALUE):
                segment[layers, which] = to_16_bits(rows.read(layers, which), segment.dtype)


def read_exact(plan: ChunkPlan, target: PoolView, canvas: Canvas) -> None:
    """Tokens of tier 1 into the pool."""
    segment = exact_array(plan, canvas)
    if segment.numel():
        rows = TokenRows(target, plan.identity, np.flatnonzero(plan.tiers == TIER_16_BITS))
        for layers in rows.blocks():
            for which in (KEY, VALUE):
                rows.write(layers, which, segment[layers, which].float())


def check_exact(plan: ChunkPlan, canvas: Canvas) -> None:
    """Raises `BadChunk` when a value of tier 1 is not finite."""
    check_finite("16-bit tokens", exact_array(plan, canvas))


def check_steps(name: str, steps: torch.Tensor) -> None:
    """Raises `BadChunk` unless float16 steps or scales are finite and not negative."""
    check_finite(name, steps)
    if steps.numel() and bool((steps.view(torch.int16) < 0).any()):
        raise BadChunk(f"{name}: one is negative")


def check_finite(name: str, numbers: torch.Tensor) -> None:
    """Raises `BadChunk` when one of these 16-bit numbers is infinite or not a number."""
    if not is_finite(numbers):
        raise BadChunk(f"{name}: one is not finite")
