"""Attention by the book: sequence after sequence, in float32. Slow and plain on purpose: the oracle of the others."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.attention.interface import StepMetadata
from engine.kv_cache import KvCache
from engine.model_config import ModelConfig


class ReferenceAttention:
    """Gathers each sequence's K and V from its blocks and masks what is later than the query or before its window."""

    name = "reference"
    is_graph_safe = False

    def __init__(self, config: ModelConfig) -> None:
        self._config = config

    def begin(self, metadata: StepMetadata, cache: KvCache) -> ReferenceStep:
        """Looks up every sequence's slots, and one mask per distinct window."""
        block_size = cache.layout.block_size
        device = metadata.positions.device
        sequences = []
        for index, length in enumerate(metadata.context_lens):
            first, last = metadata.query_starts[index], metadata.query_starts[index + 1]
            keys = torch.arange(length, device=device)
            slots = metadata.block_tables[index, keys // block_size] * block_size + keys % block_size
            queries = metadata.positions[first:last, None]
            masks = {
                window: keys > queries if window is None else (keys > queries) | (keys <= queries - window)
                for window in {layer.window for layer in self._config.layers}
            }
            sequences.append(_Sequence(first, last, slots, masks))
        return ReferenceStep(self._config, cache, metadata.slots, sequences)


@dataclass(frozen=True, slots=True)
class _Sequence:
    """Rows `[first, last)` of the step, slots of the whole context, and what each window hides: bool `[Q, C]`."""

    first: int
    last: int
    slots: torch.Tensor
    hidden: dict[int | None, torch.Tensor]


@dataclass(frozen=True, slots=True)
class ReferenceStep:
    """One step; see `StepAttention`."""

    config: ModelConfig
    cache: KvCache
    slots: torch.Tensor
    sequences: list[_Sequence]

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        """See `StepAttention.attend`."""
        self.cache.write(layer, self.slots, key, value)
        stored = self.cache.slots(layer)
        window = self.config.layers[layer].window
        output = torch.empty_like(query, memory_format=torch.contiguous_format)
        for sequence in self.sequences:
            rows = slice(sequence.first, sequence.last)
            keys, values = stored[:, sequence.slots].float()
            output[rows] = self._one(query[rows].float(), keys, values, sequence.hidden[window])
        return output

    def _one(self, query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, hidden: torch.Tensor) -> torch.Tensor:
        """Queries `[Q, H, D]`, keys and values `[C, K, D]`, hidden `[Q, C]` to `[Q, H, D]`."""
        group = self.config.num_heads // self.config.num_kv_heads
        keys = keys.repeat_interleave(group, dim=1)
        values = values.repeat_interleave(group, dim=1)
        scores = torch.einsum("qhd,chd->hqc", query, keys) * self.config.attention_scale
        cap = self.config.attention_softcap
        if cap is not None:
            scores = cap * torch.tanh(scores / cap)
        weights = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        return torch.einsum("hqc,chd->qhd", weights, values)
