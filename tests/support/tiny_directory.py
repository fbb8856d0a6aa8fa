"""A tiny seeded model as a directory on disk, with a tokenizer of bytes: what a worker process loads in no time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from engine.families import expected_tensors
from engine.model_config import ModelConfig
from tests.support.byte_tokenizer import EOS_ID, VOCAB_SIZE, write_byte_tokenizer
from tests.support.tiny_model import tiny_hf_config, tiny_weights

CONTEXT_TOKENS = 2048


def write_tiny_model(directory: Path, *, seed: int = 0, family: str = "llama", **overrides: Any) -> Path:
    """Writes config, weights and tokenizer, and returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    write_byte_tokenizer(directory)
    fields = tiny_hf_config(
        family,
        vocab_size=VOCAB_SIZE,
        max_position_embeddings=CONTEXT_TOKENS,
        eos_token_id=EOS_ID,
        **overrides,
    )
    config = ModelConfig.from_hf(fields)
    source = tiny_weights(config, seed)
    (directory / "config.json").write_text(json.dumps(fields))
    save_file({name: source.take(name) for name in expected_tensors(config)}, directory / "model.safetensors")
    return directory
