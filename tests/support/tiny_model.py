"""A tiny seeded model of each family, made without transformers, files or network in a few milliseconds."""

from __future__ import annotations

import zlib
from typing import Any

import torch

from engine.build import EngineConfig, build_engine
from engine.engine import Engine
from engine.families import expected_tensors
from engine.model_config import ModelConfig
from engine.weights import LazyWeights
from protocol.layout import DEFAULT_BLOCK_SIZE

_SHARED: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}

_SPECIAL: dict[str, dict[str, Any]] = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "mistral": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "hidden_act": "silu",
        "sliding_window": 11,
        "rope_theta": 10000.0,
        "head_dim": 20,
    },
    "qwen2": {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "rope_theta": 100000.0,
        "use_sliding_window": True,
        "sliding_window": 9,
        "max_window_layers": 2,
    },
    "qwen3": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "rope_theta": 100000.0,
        "head_dim": 20,
        "tie_word_embeddings": True,
    },
    "gemma2": {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": 7,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
        "query_pre_attn_scalar": 24,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
    },
    "gemma3": {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "num_hidden_layers": 4,
        "sliding_window": 7,
        "sliding_window_pattern": 3,
        "query_pre_attn_scalar": 24,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 4.0},
        "head_dim": 20,
        "tie_word_embeddings": True,
    },
}

TINY_FAMILIES = tuple(_SPECIAL)


def tiny_hf_config(family: str = "llama", **overrides: Any) -> dict[str, Any]:
    """A tiny config.json of `family` as transformers 4 writes it; `overrides` replace its fields."""
    return {**_SHARED, **_SPECIAL[family], **overrides}


def tiny_weights(config: ModelConfig, seed: int = 0) -> LazyWeights:
    """Random float32 weights, large enough that logits differ clearly; a tensor depends on `seed` and its name only."""
    return LazyWeights({name: _Draw(name, shape, seed, config) for name, shape in expected_tensors(config).items()})


def tiny_engine(
    seed: int = 0,
    family: str = "llama",
    block_size: int = DEFAULT_BLOCK_SIZE,
    num_blocks: int = 64,
    kv_dtype: str = "float32",
    **overrides: Any,
) -> Engine:
    """An engine on the CPU with the reference attention.

    `overrides` are fields of config.json (`num_hidden_layers=2`, `vocab_size=300`, ...) or `attention="fast"`.
    """
    attention = overrides.pop("attention", "reference")
    config = ModelConfig.from_hf(tiny_hf_config(family, **overrides))
    settings = EngineConfig(kv_dtype=kv_dtype, block_size=block_size, num_blocks=num_blocks, attention=attention)
    return build_engine(settings, config, tiny_weights(config, seed))


class _Draw:
    """Makes one tensor when it is called."""

    def __init__(self, name: str, shape: tuple[int, ...], seed: int, config: ModelConfig) -> None:
        self._name, self._shape, self._config = name, shape, config
        # torch looks at 32 bits of a seed.
        self._generator_seed = zlib.crc32(f"{seed}/{name}".encode())

    def __call__(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self._generator_seed)
        noise: torch.Tensor = torch.randn(self._shape, generator=generator)
        if self._name.endswith("norm.weight"):
            return noise.mul(0.2).add(0.0 if self._config.is_norm_offset else 1.0)
        if self._name.endswith("bias"):
            return noise.mul(0.3)
        if self._name == "model.embed_tokens.weight":
            # Small, or a model with a tied head would only ever repeat its last token.
            return noise.mul(0.25 if self._config.is_tied else 1.0).div(self._config.embedding_scale)
        return noise.mul(1.5 * self._shape[-1] ** -0.5)
