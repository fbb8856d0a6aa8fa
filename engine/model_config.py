"""What a decoder must know of a model, in words that belong to no family. `engine/families` fills it in.

Knows nothing of files, devices or the dtype that is computed in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from protocol.errors import ModelLoadError


class Activation(StrEnum):
    """The non-linearity of the gated feed-forward part."""

    SILU = "silu"
    GELU = "gelu"
    GELU_TANH = "gelu_tanh"


class RopeScaling(StrEnum):
    """How rotary frequencies are changed for long contexts."""

    NONE = "default"
    LINEAR = "linear"
    LLAMA3 = "llama3"


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """Rotary position embedding. `factor` is used by linear and llama3, the last three fields by llama3 only."""

    base: float
    scaling: RopeScaling = RopeScaling.NONE
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_positions: int = 8192


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """What may differ from layer to layer. With a `window` of W a token sees itself and the W - 1 tokens before it."""

    rope: RopeSpec
    window: int | None = None


_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_heads",
    "num_kv_heads",
    "head_dim",
    "max_position_embeddings",
)


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder-only model with grouped-query attention and a gated feed-forward part.

    `attention_scale` multiplies the products of queries and keys. Soft caps are `cap * tanh(x / cap)`. With
    `is_norm_offset` a norm multiplies by `1 + weight`. With `has_post_norms` the outputs of attention and feed-forward
    are normalised before they are added. `dtype` is the checkpoint's, for information.
    """

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    layers: tuple[LayerSpec, ...]
    max_position_embeddings: int
    norm_eps: float
    attention_scale: float
    activation: Activation = Activation.SILU
    attention_softcap: float | None = None
    final_softcap: float | None = None
    embedding_scale: float = 1.0
    has_qk_norm: bool = False
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_post_norms: bool = False
    is_norm_offset: bool = False
    is_tied: bool = False
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name in _SIZES:
            if getattr(self, name) < 1:
                raise ModelLoadError(f"config.json: {name} must be at least 1, got {getattr(self, name)}")
        if not self.layers:
            raise ModelLoadError("config.json: a model needs at least one layer")
        if self.num_heads % self.num_kv_heads:
            raise ModelLoadError(
                f"config.json: {self.num_heads} heads cannot share {self.num_kv_heads} kv heads evenly"
            )
        if self.head_dim % 2:
            raise ModelLoadError(f"config.json: rotary embeddings need an even head_dim, got {self.head_dim}")

    @property
    def num_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.layers)

    @classmethod
    def from_hf(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Reads a Hugging Face config.json, as transformers 4 or 5 writes it.

        Raises `ModelLoadError` that names what is missing, malformed or not supported.
        """
        from engine.families import parse_config  # here, because families are made of ModelConfig

        return parse_config(raw)

    def identity(self) -> str:
        """All fields that change what the model computes, as text that is equal in every process."""
        fields = [field.name for field in dataclasses.fields(self) if field.name not in ("eos_token_ids", "dtype")]
        return "/".join(f"{name}={getattr(self, name)!r}" for name in fields)
