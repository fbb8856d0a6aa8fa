"""A small seeded model as a directory on disk, for benchmarks of all but the model: it computes next to nothing.

Its tokens are the 256 bytes, then pairs of letters, so that random ids above those of the bytes are text too.
"""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from engine.families import expected_tensors
from engine.model_config import ModelConfig

VOCAB_SIZE = 512
EOS_ID = VOCAB_SIZE - 1
EOS_TEXT = "<|end|>"
NUM_BYTES = 256
CONTEXT_TOKENS = 2048
CHAT_TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
SHAPE: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_act": "silu",
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT_TOKENS,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "eos_token_id": EOS_ID,
    "tie_word_embeddings": False,
    "torch_dtype": "float32",
}


def write_tiny_model(directory: Path, seed: int = 0) -> Path:
    """Writes config, weights and tokenizer, determined by `seed`; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(SHAPE))
    (directory / "generation_config.json").write_text(json.dumps({"eos_token_id": EOS_ID}))
    settings = {"eos_token": EOS_TEXT, "chat_template": CHAT_TEMPLATE}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    _tokenizer().save(str(directory / "tokenizer.json"))
    shapes = expected_tensors(ModelConfig.from_hf(SHAPE))
    weights = {name: _tensor(name, tuple(shape), seed) for name, shape in shapes.items()}
    save_file(weights, directory / "model.safetensors")
    return directory


def _tokenizer() -> Tokenizer:
    symbols = pre_tokenizers.ByteLevel.alphabet()
    pairs = (first + second for first in ascii_lowercase for second in ascii_lowercase)
    texts = [*sorted(symbols), *(pair for pair, _ in zip(pairs, range(EOS_ID - NUM_BYTES), strict=False))]
    tokenizer = Tokenizer(models.BPE(vocab={text: number for number, text in enumerate(texts)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(EOS_TEXT, special=True)])
    return tokenizer


def _tensor(name: str, shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Random, and large enough that logits differ clearly: no rounding decides which token is next."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{seed}/{name}".encode()))
    noise = torch.randn(shape, generator=generator)
    if name.endswith("norm.weight"):
        return noise.mul(0.2).add(1.0)
    if name == "model.embed_tokens.weight":
        return noise
    return noise.mul(1.5 * shape[-1] ** -0.5)
