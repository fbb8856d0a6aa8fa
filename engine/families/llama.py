"""Llama (also SmolLM2, TinyLlama and others that keep its architecture) and Mistral, which adds a sliding window."""

from __future__ import annotations

from engine.families.family import Family, HfFields, read_model, read_rope
from engine.model_config import LayerSpec, ModelConfig

_DEFAULTS = {"rms_norm_eps": 1e-6, "hidden_act": "silu", "max_position_embeddings": 2048}


def _read_llama(fields: HfFields) -> ModelConfig:
    layer = LayerSpec(read_rope(fields))
    has_bias = fields.flag("attention_bias")
    return read_model(
        fields,
        (layer,) * fields.integer("num_hidden_layers"),
        has_qkv_bias=has_bias,
        has_output_bias=has_bias,
        has_mlp_bias=fields.flag("mlp_bias"),
    )


def _read_mistral(fields: HfFields) -> ModelConfig:
    window = None if fields.get("sliding_window") is None else fields.integer("sliding_window")
    layer = LayerSpec(read_rope(fields), window)
    return read_model(fields, (layer,) * fields.integer("num_hidden_layers"))


LLAMA = Family("llama", ("LlamaForCausalLM",), ("llama",), _read_llama, defaults=_DEFAULTS)
MISTRAL = Family(
    "mistral",
    ("MistralForCausalLM",),
    ("mistral",),
    _read_mistral,
    defaults={**_DEFAULTS, "max_position_embeddings": 131072, "num_key_value_heads": 8, "sliding_window": 4096},
)
