"""The same tiny model in transformers: the oracle of the decoder."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers

from engine.families import family_of
from engine.model_config import ModelConfig
from tests.support.tiny_model import tiny_weights


def hf_logits(raw: dict[str, Any], token_ids: list[int], seed: int = 0) -> torch.Tensor:
    """Float32 logits `[T, vocab_size]` by transformers' eager attention, with the weights of `tiny_weights`.

    Fails unless the tensors that the family expects are exactly those of the transformers model.
    """
    model = hf_model(raw, seed)
    with torch.inference_mode():
        logits: torch.Tensor = model(torch.tensor([token_ids])).logits[0].float()
    return logits


def hf_model(raw: dict[str, Any], seed: int = 0) -> Any:
    """The transformers model for a config.json, in float32 with eager attention."""
    architecture = getattr(transformers, family_of(raw).architectures[0])
    config = architecture.config_class.from_dict(copy.deepcopy(raw))
    config._attn_implementation = "eager"
    model = architecture(config).float().eval()
    source = tiny_weights(ModelConfig.from_hf(raw), seed)
    missing, unexpected = model.load_state_dict({name: source.take(name) for name in source.names()}, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if set(missing) - tied or unexpected:
        raise AssertionError(f"missing {missing}, unexpected {unexpected}")
    return model
