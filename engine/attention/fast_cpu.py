"""Attention for the CPU: torch's fused kernel over K and V where they lie, joined from runs, or gathered from slots.

A sequence with one new token is attended to in place, without a copy, when its blocks follow each other, and alone when it is
long, its runs of such blocks joined. The others with one new token are gathered together, padded to the longest context; each
longer slice goes alone. Padding repeats the sequence's first slot, so that only slots that were written are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

import torch

from engine.attention.interface import StepMetadata
from engine.kv_cache import KvCache
from engine.model_config import ModelConfig

MIN_IN_PLACE_TOKENS = 64
"""Shorter contexts are gathered together: a call for each would cost more than the copy."""
MIN_JOINED_TOKENS = 768
"""From here on joining a sequence's runs costs less than gathering its slots, even if every block is a run of its own: half as
much for four runs, three quarters for 128 (2,048 tokens, SmolLM2's heads).
"""
Span: TypeAlias = tuple[int, int]
"""First slot and the one after the last."""


class FastCpuAttention:
    """Chooses slots and masks once per step; each layer then takes one gather and one fused call per group."""

    name = "fast"
    is_graph_safe = False

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self._windows = {layer.window for layer in config.layers}

    def begin(self, metadata: StepMetadata, cache: KvCache) -> FastCpuStep:
        """Groups the sequences: decodes in place or in one group, each prefill chunk in its own."""
        sizes = [last - first for first, last in pairwise(metadata.query_starts)]
        decodes = [index for index, size in enumerate(sizes) if size == 1]
        alone = self._alone(metadata, cache, decodes)
        gathered = [index for index in decodes if index not in alone]
        groups = [self._decodes(metadata, cache, gathered)] if gathered else []
        groups += [self._chunk(metadata, cache, index) for index, size in enumerate(sizes) if size > 1]
        rows = [(metadata.query_starts[index], runs) for index, runs in alone.items()]
        return FastCpuStep(self._config, cache, metadata.slots, groups, rows)

    def _alone(self, metadata: StepMetadata, cache: KvCache, decodes: list[int]) -> dict[int, list[Span]]:
        """The runs of the sequences that are attended to each by itself."""
        if self._config.attention_softcap is not None:
            return {}
        found = {}
        for index in decodes:
            length = metadata.context_lens[index]
            if length < MIN_IN_PLACE_TOKENS:
                continue
            runs = _runs(metadata.block_tables[index], length, cache.layout.block_size)
            if len(runs) == 1 or length >= MIN_JOINED_TOKENS:
                found[index] = runs
        return found

    def _decodes(self, metadata: StepMetadata, cache: KvCache, members: list[int]) -> _Group:
        lengths = torch.tensor([metadata.context_lens[index] for index in members])[:, None]
        rows: slice | torch.Tensor = slice(None)
        tables = metadata.block_tables
        if len(members) < metadata.num_sequences:
            rows = torch.tensor([metadata.query_starts[index] for index in members])
            tables = tables[members]
        keys = torch.arange(int(lengths.max()))
        slots = _slots(tables, torch.where(keys < lengths, keys, 0), cache.layout.block_size)
        masks = {window: _mask(keys, lengths - 1, window) for window in self._windows}
        masks = {window: None if mask is None else mask[:, None, None] for window, mask in masks.items()}
        return _Group(rows, slots, masks, len(members))

    def _chunk(self, metadata: StepMetadata, cache: KvCache, index: int) -> _Group:
        rows = slice(metadata.query_starts[index], metadata.query_starts[index + 1])
        keys = torch.arange(metadata.context_lens[index])
        slots = _slots(metadata.block_tables[index : index + 1], keys[None], cache.layout.block_size)
        # A whole prompt in one chunk has the mask that the kernel knows by itself, and computes half of the scores.
        is_whole = rows.stop - rows.start == len(keys) and self._config.attention_softcap is None
        plain = {window for window in self._windows if is_whole and (window is None or window >= len(keys))}
        masks = {
            window: None if window in plain else _mask(keys, metadata.positions[rows, None], window)
            for window in self._windows
        }
        return _Group(rows, slots, masks, None)


def _runs(table: torch.Tensor, length: int, block_size: int) -> list[Span]:
    """The slots of a sequence's first `length` positions, in order: a span for each run of blocks that follow each other."""
    blocks = table[: -(-length // block_size)]
    ends = [*(torch.nonzero(blocks.diff() != 1).flatten() + 1).tolist(), len(blocks)]
    starts = [0, *ends[:-1]]
    spans = []
    for start, end in zip(starts, ends, strict=True):
        first = int(blocks[start]) * block_size
        spans.append((first, first + min(end * block_size, length) - start * block_size))
    return spans


def _last(runs: list[Span], num_slots: int) -> list[Span]:
    """The last `num_slots` of the runs' slots, or all if there are fewer."""
    kept: list[Span] = []
    for first, end in reversed(runs):
        if num_slots <= 0:
            break
        kept.append((max(first, end - num_slots), end))
        num_slots -= end - first
    return kept[::-1]


def _slots(tables: torch.Tensor, positions: torch.Tensor, block_size: int) -> torch.Tensor:
    """Slots of `positions` `[B, C]` of sequences with block tables `[B, M]`, flat."""
    blocks = tables.gather(1, (positions // block_size).expand(len(tables), -1))
    return (blocks * block_size + positions % block_size).flatten()


def _mask(keys: torch.Tensor, queries: torch.Tensor, window: int | None) -> torch.Tensor | None:
    """What to add to the scores: 0 or minus infinity, `[Q, C]`. None when each of the queries `[Q, 1]` sees all keys."""
    hidden = keys > queries
    if window is not None:
        hidden |= keys <= queries - window
    if not bool(hidden.any()):
        return None
    return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))


@dataclass(frozen=True, slots=True)
class _Group:
    """`rows` of the step, the slots they attend to, and what to add to the scores by window.

    With `num_decodes` B, of which each has one row, there are B * C slots; a chunk has C and None.
    """

    rows: slice | torch.Tensor
    slots: torch.Tensor
    masks: dict[int | None, torch.Tensor | None]
    num_decodes: int | None


@dataclass(frozen=True, slots=True)
class FastCpuStep:
    """One step; see `StepAttention`. `alone`: the row of each sequence that is attended to by itself, and its runs."""

    config: ModelConfig
    cache: KvCache
    slots: torch.Tensor
    groups: list[_Group]
    alone: list[tuple[int, list[Span]]]

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See `StepAttention.attend`."""
        self.cache.write(layer, self.slots, key, value)
        stored = self.cache.slots(layer)
        window = self.config.layers[layer].window
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        for group in self.groups:
            kv = stored.index_select(1, group.slots).to(query.dtype)
            attend = self._chunk if group.num_decodes is None else self._decodes
            output[group.rows] = attend(query[group.rows], kv, group.masks[window])
        for row, runs in self.alone:
            # The only query stands at the end: a window is the end of the runs, and nothing has to be masked.
            parts = [stored[:, first:end] for first, end in (runs if window is None else _last(runs, window))]
            seen = (parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)).to(query.dtype)
            output[row] = self._decodes(query[row : row + 1], seen, None)
        return output

    def _decodes(self, query: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Queries `[B, H, D]` of B sequences, K and V `[2, B * C, K, D]`, mask `[B, 1, 1, C]`.

        The query heads that share a KV head stand as further queries, so that K and V are read once.
        """
        grouped = self._grouped(query)
        keys, values = kv.view(2, len(query), -1, *kv.shape[2:]).transpose(2, 3)
        return self._scaled(grouped, keys, values, mask, False).flatten(1, 2)

    def _chunk(self, query: torch.Tensor, kv: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Queries `[Q, H, D]` of one sequence, K and V `[2, C, K, D]`, mask `[Q, C]`. Without one it is causal."""
        grouped = self._grouped(query).permute(1, 2, 0, 3)
        keys, values = kv.transpose(1, 2)[:, :, None].expand(-1, -1, grouped.shape[1], -1, -1)
        return self._scaled(grouped, keys, values, mask, mask is None).permute(2, 0, 1, 3).flatten(1, 2)

    def _grouped(self, query: torch.Tensor) -> torch.Tensor:
        """`[T, H, D]` to `[T, K, H / K, D]`."""
        return query.view(len(query), self.config.num_kv_heads, -1, query.shape[-1])

    def _scaled(
        self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, mask: torch.Tensor | None, is_causal: bool
    ) -> torch.Tensor:
        """Attention over the last two dimensions, with the model's scale and soft cap."""
        scale, cap = self.config.attention_scale, self.config.attention_softcap
        if cap is None:
            return torch.nn.functional.scaled_dot_product_attention(
                query, keys, values, attn_mask=mask, is_causal=is_causal, scale=scale
            )
        scores = (query @ keys.transpose(-1, -2)).float().mul_(scale / cap).tanh_().mul_(cap)
        if mask is not None:
            scores += mask
        return scores.softmax(dim=-1).to(values.dtype) @ values
