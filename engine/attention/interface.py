"""The contract of every attention: once per step it is told who attends to what, then it is called layer by layer.

Each call stores the new tokens' K and V in the paged cache and attends over everything that the cache then holds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from engine.batch import StepBatch
from engine.kv_cache import KvCache


@dataclass(frozen=True, slots=True)
class StepMetadata:
    """Where a step's packed tokens stand. T tokens of S sequences; all tensors are int64 and on the step's device.

    `positions` `[T]` and `slots` `[T]` (block * block_size + offset) belong to the tokens. `block_tables` `[S, M]` is
    padded with 0 to the longest one. Tokens `query_starts[s]` to `query_starts[s + 1]` (S + 1 numbers) are sequence
    s's, and `context_lens[s]` is the number of its positions that are cached once they are written.
    """

    positions: torch.Tensor
    slots: torch.Tensor
    block_tables: torch.Tensor
    query_starts: tuple[int, ...]
    context_lens: tuple[int, ...]

    @property
    def num_sequences(self) -> int:
        """S."""
        return len(self.context_lens)

    @property
    def is_decode_only(self) -> bool:
        """Whether every sequence has exactly one new token."""
        return self.query_starts[-1] == len(self.context_lens)


class StepAttention(Protocol):
    """The attention of one step."""

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """Stores `key` and `value` `[T, num_kv_heads, head_dim]`, rotated already, then attends with `query`.

        `query` and the answer are `[T, num_heads, head_dim]` of one dtype. Inputs may be strided views and are not
        changed.
        """
        ...


class AttentionBackend(Protocol):
    """A way to compute attention for one model. `is_graph_safe`: a decode step can be captured in a CUDA graph."""

    name: str
    is_graph_safe: bool

    def begin(self, metadata: StepMetadata, cache: KvCache) -> StepAttention:
        """Does once what all layers of a step share: masks, indices, plans."""
        ...


def build_metadata(batch: StepBatch, block_size: int, device: torch.device) -> StepMetadata:
    """The metadata of a batch that was checked: every block table covers its sequence's new tokens."""
    positions: list[int] = []
    slots: list[int] = []
    tables: list[list[int]] = []
    query_starts = [0]
    for part in batch.slices:
        block_ids = list(part.block_ids[: -(-part.end // block_size)])
        span = range(part.start, part.end)
        positions.extend(span)
        slots.extend(block_ids[at // block_size] * block_size + at % block_size for at in span)
        tables.append(block_ids)
        query_starts.append(len(positions))
    longest = max(map(len, tables))
    return StepMetadata(
        positions=torch.tensor(positions, device=device),
        slots=torch.tensor(slots, device=device),
        block_tables=torch.tensor([ids + [0] * (longest - len(ids)) for ids in tables], device=device),
        query_starts=tuple(query_starts),
        context_lens=tuple(part.end for part in batch.slices),
    )
