"""Gemma 2 (soft caps, every other layer slides) and the text part of Gemma 3 (norms on q and k, two rotary bases)."""

from __future__ import annotations

from typing import Any

from engine.families.family import FULL, SLIDING, Family, HfFields, NormNames, layers_of, read_model, read_rope
from engine.model_config import ModelConfig, RopeSpec
from protocol.errors import ModelLoadError

_NORMS = NormNames(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)
_DEFAULTS = {
    "rms_norm_eps": 1e-6,
    "hidden_activation": "gelu_pytorch_tanh",
    "tie_word_embeddings": True,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "eos_token_id": 1,
}
_GEMMA2_DEFAULTS = {
    **_DEFAULTS,
    "vocab_size": 256000,
    "max_position_embeddings": 8192,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}
_GEMMA3_DEFAULTS = {**_DEFAULTS, "vocab_size": 262208, "max_position_embeddings": 131072, "sliding_window_pattern": 6}


def _shared(fields: HfFields) -> dict[str, Any]:
    if fields.flag("use_bidirectional_attention"):
        raise ModelLoadError("config.json: use_bidirectional_attention is not supported: only causal decoders are")
    has_bias = fields.flag("attention_bias")
    return {
        "attention_scale": fields.number("query_pre_attn_scalar") ** -0.5,
        "embedding_scale": fields.integer("hidden_size") ** 0.5,
        "final_softcap": fields.number_or_none("final_logit_softcapping"),
        "has_post_norms": True,
        "is_norm_offset": True,
        "has_qkv_bias": has_bias,
        "has_output_bias": has_bias,
    }


def _kinds(fields: HfFields, period: int) -> tuple[str, ...]:
    """Every `period`-th layer sees the whole context, the others slide."""
    num_layers = fields.integer("num_hidden_layers")
    return fields.layer_types(num_layers) or tuple(
        FULL if (index + 1) % period == 0 else SLIDING for index in range(num_layers)
    )


def _read_gemma2(fields: HfFields) -> ModelConfig:
    rope = read_rope(fields)
    layers = layers_of(_kinds(fields, 2), fields.integer("sliding_window"), {SLIDING: rope, FULL: rope})
    return read_model(
        fields, layers, attention_softcap=fields.number_or_none("attn_logit_softcapping"), **_shared(fields)
    )


def _read_gemma3(fields: HfFields) -> ModelConfig:
    kinds = _kinds(fields, fields.integer("sliding_window_pattern"))
    layers = layers_of(kinds, fields.integer("sliding_window"), _gemma3_ropes(fields))
    return read_model(fields, layers, has_qk_norm=True, **_shared(fields))


def _gemma3_ropes(fields: HfFields) -> dict[str, RopeSpec]:
    """Local layers have a base of their own, and scaling touches the global ones only."""
    if {SLIDING, FULL} & set(fields.mapping("rope_parameters")):
        return {kind: read_rope(fields, kind) for kind in (SLIDING, FULL)}
    local = RopeSpec(fields.number_or_none("rope_local_base_freq") or 10_000.0)
    has_base = fields.get("rope_theta") is not None
    scaled = (
        fields
        if has_base
        else HfFields({"rope_scaling": fields.get("rope_scaling"), "rope_theta": 1e6}, fields.family, {})
    )
    return {SLIDING: local, FULL: read_rope(scaled)}


GEMMA2 = Family("gemma2", ("Gemma2ForCausalLM",), ("gemma2",), _read_gemma2, _NORMS, _GEMMA2_DEFAULTS)
GEMMA3 = Family(
    "gemma3",
    ("Gemma3ForCausalLM", "Gemma3ForConditionalGeneration"),
    ("gemma3_text", "gemma3"),
    _read_gemma3,
    _NORMS,
    _GEMMA3_DEFAULTS,
)
