"""Attention for CUDA by torch's scaled_dot_product_attention over K and V gathered from their blocks.

Sequences with one new token go together, padded to the longest block table; each longer slice goes alone. Written in
plain tensor operations, so that it computes the same on a CPU, where the tests hold it against the reference. Slots
beyond a sequence's end are masked but do reach the arithmetic: the pool must hold finite numbers everywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.attention.interface import StepMetadata
from engine.kv_cache import KvCache
from engine.model_config import ModelConfig


class CudaAttention:
    """A step with one token per sequence reads tensors only, no lengths, and can therefore be captured in a graph."""

    name = "cuda"
    is_graph_safe = True

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._windows = {layer.window for layer in config.layers}

    def begin(self, metadata: StepMetadata, cache: KvCache) -> CudaStep:
        """Groups the sequences and makes one mask per group and distinct window."""
        if metadata.is_decode_only:
            everyone = torch.arange(metadata.num_sequences, device=metadata.positions.device)
            groups = [self._group(metadata, cache, slice(None), everyone[:, None])]
        else:
            groups = self._mixed_groups(metadata, cache)
        return CudaStep(self._config, cache, metadata.slots, groups)

    def _mixed_groups(self, metadata: StepMetadata, cache: KvCache) -> list[_Group]:
        device = metadata.positions.device
        decodes, groups = [], []
        for index, length in enumerate(metadata.context_lens):
            first, last = metadata.query_starts[index], metadata.query_starts[index + 1]
            if last - first == 1:
                decodes.append(index)
                continue
            num_blocks = -(-length // cache.layout.block_size)
            rows = torch.arange(first, last, device=device)[None]
            groups.append(self._group(metadata, cache, slice(index, index + 1), rows, num_blocks))
        if decodes:
            members = torch.tensor(decodes, device=device)
            rows = torch.tensor([[metadata.query_starts[index]] for index in decodes], device=device)
            num_blocks = max(-(-metadata.context_lens[index] // cache.layout.block_size) for index in decodes)
            groups.append(self._group(metadata, cache, members, rows, num_blocks))
        return groups

    def _group(
        self,
        metadata: StepMetadata,
        cache: KvCache,
        members: slice | torch.Tensor,
        rows: torch.Tensor,
        num_blocks: int | None = None,
    ) -> _Group:
        """B sequences whose Q new tokens each are the step's `rows` `[B, Q]`; C positions are gathered."""
        tables = metadata.block_tables[members, :num_blocks]
        offsets = torch.arange(cache.layout.block_size, device=rows.device)
        slots = (tables[:, :, None] * cache.layout.block_size + offsets).flatten(1)
        keys = torch.arange(slots.shape[1], device=rows.device)
        queries = metadata.positions[rows][:, :, None]
        share = self._config.num_heads // self._config.num_kv_heads
        visible = {}
        for window in self._windows:
            seen = keys <= queries if window is None else (keys <= queries) & (keys > queries - window)
            # The query heads that share a KV head are stacked as if they were further queries.
            visible[window] = seen.repeat(1, share, 1)[:, None]
        return _Group(rows, slots, visible)


@dataclass(frozen=True, slots=True)
class _Group:
    """`rows` `[B, Q]`, `slots` `[B, C]`, and by window what is visible: bool `[B, 1, share * Q, C]`."""

    rows: torch.Tensor
    slots: torch.Tensor
    visible: dict[int | None, torch.Tensor]


@dataclass(frozen=True, slots=True)
class CudaStep:
    """One step; see `StepAttention`."""

    config: ModelConfig
    cache: KvCache
    slots: torch.Tensor
    groups: list[_Group]

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See `StepAttention.attend`."""
        self.cache.write(layer, self.slots, key, value)
        stored = self.cache.slots(layer)
        window = self.config.layers[layer].window
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        for group in self.groups:
            output[group.rows] = self._one(query[group.rows], stored, group, window)
        return output

    def _one(self, query: torch.Tensor, stored: torch.Tensor, group: _Group, window: int | None) -> torch.Tensor:
        """Queries `[B, Q, H, D]` to the same shape."""
        batch, num_queries, num_heads, width = query.shape
        num_kv_heads = self.config.num_kv_heads
        stacked = query.view(batch, num_queries, num_kv_heads, -1, width).permute(0, 2, 3, 1, 4).flatten(2, 3)
        keys = stored[0][group.slots].to(query.dtype).transpose(1, 2)
        values = stored[1][group.slots].to(query.dtype).transpose(1, 2)
        attended = self._attend(stacked, keys, values, group.visible[window])
        unstacked = attended.view(batch, num_kv_heads, -1, num_queries, width).permute(0, 3, 1, 2, 4)
        return unstacked.reshape(batch, num_queries, num_heads, width)

    def _attend(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, visible: torch.Tensor
    ) -> torch.Tensor:
        """Queries `[B, K, share * Q, D]` over keys and values `[B, K, C, D]`."""
        scale, cap = self.config.attention_scale, self.config.attention_softcap
        if cap is None:
            return torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=visible, scale=scale)
        scores = torch.tanh((query @ keys.transpose(2, 3)).float() * (scale / cap)) * cap
        weights = scores.masked_fill_(~visible, float("-inf")).softmax(dim=-1)
        return weights.to(values.dtype) @ values
