"""One decoder for all families: packed tokens in, logits out. What differs between families is in `ModelConfig`.

Knows nothing of sequences, pages or sampling: attention is handed in per step.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from engine.attention.interface import StepAttention
from engine.linear import Linear
from engine.model_config import Activation, ModelConfig, RopeSpec
from engine.norm import RmsNorm
from engine.rope import Rotation, inverse_frequencies, rotation_at


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. `qkv` is the three projections stacked, `gate_up` the two of the feed-forward part.

    `qk_norm` normalises query and key heads at once. Norms that a family does not have are None.
    """

    before_attention: RmsNorm
    qkv: Linear
    qk_norm: RmsNorm | None
    output: Linear
    after_attention: RmsNorm | None
    before_mlp: RmsNorm
    gate_up: Linear
    down: Linear
    after_mlp: RmsNorm | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """A whole model. `embedding` is `[vocab_size, hidden_size]` in the compute dtype."""

    embedding: torch.Tensor
    layers: tuple[LayerWeights, ...]
    final_norm: RmsNorm
    head: Linear


class Decoder:
    """Runs `weights` of a model of `config`. Its calls must be made under `torch.inference_mode()`."""

    def __init__(self, config: ModelConfig, weights: DecoderWeights) -> None:
        self.config = config
        self.device = weights.embedding.device
        self.dtype = weights.embedding.dtype
        self._weights = weights
        self._scale = torch.tensor(config.embedding_scale, dtype=self.dtype, device=self.device)
        self._frequencies = {
            rope: inverse_frequencies(rope, config.head_dim).to(self.device)
            for rope in {layer.rope for layer in config.layers}
        }

    def hidden(
        self, token_ids: torch.Tensor, positions: torch.Tensor, attention: StepAttention, rows: torch.Tensor | None
    ) -> torch.Tensor:
        """Runs all layers over `token_ids` and `positions` (int64 `[T]`).

        Returns what `logits` takes: `[R, hidden_size]` for `rows` (int64 `[R]`), or for all tokens if None. Rows that
        are not asked for are left out as soon as their K and V are stored; with no rows the answer is empty.
        """
        rotations = {rope: rotation_at(freq, positions, self.dtype) for rope, freq in self._frequencies.items()}
        x = torch.nn.functional.embedding(token_ids, self._weights.embedding)
        if self.config.embedding_scale != 1.0:
            x = x * self._scale
        last = len(self._weights.layers) - 1
        for index, layer in enumerate(self._weights.layers):
            attended = self._attend(index, layer, x, rotations, attention)
            if index == last and rows is not None:
                if not rows.numel():
                    return x[:0]
                x, attended = x[rows], attended[rows]
            _add(x, layer.output(attended), layer.after_attention)
            _add(x, self._feed_forward(layer, x), layer.after_mlp)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Float32 logits `[R, vocab_size]` of what `hidden` returned, R at least 1."""
        logits = self._weights.head(self._weights.final_norm(hidden)).float()
        cap = self.config.final_softcap
        return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)

    def _attend(
        self,
        index: int,
        layer: LayerWeights,
        x: torch.Tensor,
        rotations: dict[RopeSpec, Rotation],
        attention: StepAttention,
    ) -> torch.Tensor:
        """`[T, hidden_size]` to `[T, num_heads * head_dim]`."""
        config = self.config
        num_rotated = config.num_heads + config.num_kv_heads
        qkv = layer.qkv(layer.before_attention(x)).view(x.shape[0], -1, config.head_dim)
        query_key = qkv[:, :num_rotated]
        if layer.qk_norm is not None:
            query_key = layer.qk_norm(query_key)
        query_key = rotations[config.layers[index].rope].apply(query_key)
        query, key = query_key[:, : config.num_heads], query_key[:, config.num_heads :]
        return attention.attend(index, query, key, qkv[:, num_rotated:]).flatten(1)

    def _feed_forward(self, layer: LayerWeights, x: torch.Tensor) -> torch.Tensor:
        gate, up = layer.gate_up(layer.before_mlp(x)).chunk(2, dim=-1)
        return layer.down(_activate(gate, self.config.activation).mul_(up))


def _add(x: torch.Tensor, branch: torch.Tensor, norm: RmsNorm | None) -> None:
    """Adds a branch to the residual stream `x`, in place."""
    x.add_(branch if norm is None else norm(branch))


def _activate(gate: torch.Tensor, activation: Activation) -> torch.Tensor:
    if activation is Activation.SILU:
        return torch.nn.functional.silu(gate)
    return torch.nn.functional.gelu(gate, approximate="tanh" if activation is Activation.GELU_TANH else "none")
