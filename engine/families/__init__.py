"""The supported families of models: one description each, and one decoder for all.

A description says how config.json maps to `ModelConfig` and what the checkpoint's tensors are called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from engine.families.family import Family, HfFields
from engine.families.gemma import GEMMA2, GEMMA3
from engine.families.llama import LLAMA, MISTRAL
from engine.families.names import canonical_name, expected_tensors
from engine.families.qwen import QWEN2, QWEN3
from engine.model_config import ModelConfig
from protocol.errors import ModelLoadError

__all__ = ["FAMILIES", "canonical_name", "expected_tensors", "family_of", "parse_config"]

FAMILIES: Mapping[str, Family] = {family.name: family for family in (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3)}

_OUTER_FIELDS = ("eos_token_id", "dtype", "torch_dtype", "tie_word_embeddings")


def family_of(raw: Mapping[str, Any]) -> Family:
    """The family of a config.json, by `architectures` or else `model_type`. Raises `ModelLoadError` if none fits."""
    architectures = raw.get("architectures") or []
    model_type = raw.get("model_type")
    for family in FAMILIES.values():
        if set(architectures) & set(family.architectures) or (not architectures and model_type in family.model_types):
            return family
    supported = ", ".join(name for family in FAMILIES.values() for name in family.architectures)
    named = ", ".join(map(str, architectures)) or f"model_type {model_type!r}"
    raise ModelLoadError(f"config.json: architecture {named} is not supported; supported: {supported}")


def parse_config(raw: Mapping[str, Any]) -> ModelConfig:
    """See `ModelConfig.from_hf`."""
    family = family_of(raw)
    if raw.get("quantization_config") is not None:
        # Its tensors would load under the same names, and mean something else.
        raise ModelLoadError(
            "config.json: quantization_config is not supported; use the unquantised model or a GGUF file"
        )
    text = raw.get("text_config")
    if isinstance(text, Mapping):
        # A multimodal model: its text part stands apart, and what that leaves out is found outside.
        raw = {**{name: raw[name] for name in _OUTER_FIELDS if raw.get(name) is not None}, **text}
    return family.read(HfFields(raw, family.name, family.defaults))
