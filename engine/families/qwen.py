"""Qwen2 (biases on q, k and v) and Qwen3 (norms on q and k)."""

from __future__ import annotations

from engine.families.family import FULL, SLIDING, Family, HfFields, layers_of, read_model, read_rope
from engine.model_config import LayerSpec, ModelConfig

_DEFAULTS = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "max_position_embeddings": 32768}


def _layers(fields: HfFields) -> tuple[LayerSpec, ...]:
    """The upper layers slide, from `max_window_layers` on, if `use_sliding_window` says so at all."""
    num_layers = fields.integer("num_hidden_layers")
    window = fields.integer_or("sliding_window", 4096) if fields.flag("use_sliding_window") else None
    first_sliding = fields.integer_or("max_window_layers", 28)
    kinds = fields.layer_types(num_layers)
    if kinds is None:
        kinds = tuple(SLIDING if index >= first_sliding else FULL for index in range(num_layers))
    rope = read_rope(fields)
    return layers_of(kinds, window, {SLIDING: rope, FULL: rope})


def _read_qwen2(fields: HfFields) -> ModelConfig:
    return read_model(fields, _layers(fields), has_qkv_bias=True)


def _read_qwen3(fields: HfFields) -> ModelConfig:
    has_bias = fields.flag("attention_bias")
    return read_model(fields, _layers(fields), has_qk_norm=True, has_qkv_bias=has_bias, has_output_bias=has_bias)


QWEN2 = Family("qwen2", ("Qwen2ForCausalLM",), ("qwen2",), _read_qwen2, defaults=_DEFAULTS)
QWEN3 = Family("qwen3", ("Qwen3ForCausalLM",), ("qwen3",), _read_qwen3, defaults={**_DEFAULTS, "head_dim": 128})
