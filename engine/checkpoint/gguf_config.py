"""The Hugging Face `config.json` and `generation_config.json` that a GGUF file's metadata amounts to.

What GGUF does not carry is filled in as llama.cpp does for the same architecture; each such rule says so. Knows no
weights but the shape of the embedding and the rope factors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from engine.checkpoint.gguf_file import GgufFile
from protocol.errors import ModelLoadError

GEMMA_LAYERS_27B = {"gemma2": 46, "gemma3": 62}
"""Depth by which llama.cpp knows the 27B models: they scale queries by hidden size over heads, not by head_dim."""

GEMMA3_SLIDING_PATTERN = 6
"""In Gemma 3 every sixth layer sees the whole context, the others a window."""

LLAMA3_LOW_FREQ, LLAMA3_HIGH_FREQ, LLAMA3_CONTEXT = 1.0, 4.0, 8192
"""Constants of the rope scaling of all published Llama 3.1 to 3.3 models; GGUF holds only the resulting factors."""

ROPE_FACTORS = "rope_freqs.weight"

_TURN_ENDS = frozenset(
    {"<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>", "<|end_of_text|>", "<|endoftext|>", "<eos>", "</s>"}
)
_CONTROL_TOKEN = 3


def model_config(file: GgufFile) -> dict[str, Any]:
    """`config.json` of the file's model. Raises `ModelLoadError` naming what is missing or not supported."""
    build = _ARCHITECTURES.get(file.architecture)
    if build is None:
        known = ", ".join(sorted(_ARCHITECTURES))
        raise ModelLoadError(f"{file.path}: architecture {file.architecture!r} is not supported; kvferry reads {known}")
    return _shape(file) | generation_config(file) | build(file)


def generation_config(file: GgufFile) -> dict[str, Any]:
    """`generation_config.json`: above all `eos_token_id`, the list of every token that ends a text or a chat turn."""
    tokens = file.get("tokenizer.ggml.tokens", [])
    kinds = file.get("tokenizer.ggml.token_type", [])
    ends = [file.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot", "eom")]
    named = [index for index, kind in enumerate(kinds) if kind == _CONTROL_TOKEN and tokens[index] in _TURN_ENDS]
    return {
        "bos_token_id": file.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": list(dict.fromkeys(index for index in ends + named if index is not None)) or None,
        "pad_token_id": file.get("tokenizer.ggml.padding_token_id"),
    }


def head_dim(file: GgufFile) -> int:
    """Width of one attention head."""
    name = file.architecture
    stated = file.get(f"{name}.attention.key_length") or file.get(f"{name}.rope.dimension_count")
    return int(stated or file.field(f"{name}.embedding_length") // file.field(f"{name}.attention.head_count"))


def _shape(file: GgufFile) -> dict[str, Any]:
    """The fields that all architectures share."""
    name = file.architecture
    num_heads = file.field(f"{name}.attention.head_count")
    num_kv_heads = file.get(f"{name}.attention.head_count_kv", num_heads)
    if not isinstance(num_heads, int) or not isinstance(num_kv_heads, int):
        raise ModelLoadError(f"{file.path}: the number of heads differs between layers, which is not supported")
    return {
        "hidden_size": file.field(f"{name}.embedding_length"),
        "intermediate_size": file.field(f"{name}.feed_forward_length"),
        "num_hidden_layers": file.field(f"{name}.block_count"),
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "head_dim": head_dim(file),
        "max_position_embeddings": file.field(f"{name}.context_length"),
        "rms_norm_eps": file.field(f"{name}.attention.layer_norm_rms_epsilon"),
        "rope_theta": file.get(f"{name}.rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(file),
        "vocab_size": file.shape("token_embd.weight")[0],
        "tie_word_embeddings": "output.weight" not in file.tensor_names(),
        "torch_dtype": "float32",
    }


def _llama(file: GgufFile) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in file.tensor_names(),
        "mlp_bias": "blk.0.ffn_up.bias" in file.tensor_names(),
    }


def _qwen2(file: GgufFile) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "use_sliding_window": False,
    }


def _qwen3(file: GgufFile) -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_act": "silu",
        "attention_bias": "blk.0.attn_q.bias" in file.tensor_names(),
        "use_sliding_window": False,
    }


def _gemma2(file: GgufFile) -> dict[str, Any]:
    num_layers = file.field("gemma2.block_count")
    return {
        "architectures": ["Gemma2ForCausalLM"],
        "model_type": "gemma2",
        "attn_logit_softcapping": file.get("gemma2.attn_logit_softcapping", 50.0),
        "final_logit_softcapping": file.get("gemma2.final_logit_softcapping", 30.0),
        "sliding_window": file.get("gemma2.attention.sliding_window", 4096),
        "layer_types": ["full_attention" if layer % 2 else "sliding_attention" for layer in range(num_layers)],
    } | _gemma(file)


def _gemma3(file: GgufFile) -> dict[str, Any]:
    num_layers = file.field("gemma3.block_count")
    pattern = file.get("gemma3.attention.sliding_window_pattern", GEMMA3_SLIDING_PATTERN)
    if isinstance(pattern, list):
        is_sliding = [bool(flag) for flag in pattern]
    else:
        is_sliding = [(layer + 1) % pattern != 0 for layer in range(num_layers)]
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "rope_theta": file.get("gemma3.rope.freq_base", 1_000_000.0),
        "rope_local_base_freq": file.get("gemma3.rope.freq_base_swa", 10_000.0),
        "attn_logit_softcapping": file.get("gemma3.attn_logit_softcapping"),
        "final_logit_softcapping": file.get("gemma3.final_logit_softcapping"),
        "sliding_window": file.field("gemma3.attention.sliding_window"),
        "layer_types": ["sliding_attention" if sliding else "full_attention" for sliding in is_sliding],
    } | _gemma(file)


def _gemma(file: GgufFile) -> dict[str, Any]:
    """What Gemma 2 and 3 share: the activation, and the query scale by llama.cpp's rule (GGUF does not carry it)."""
    name = file.architecture
    is_27b = file.field(f"{name}.block_count") == GEMMA_LAYERS_27B[name]
    by_width = file.field(f"{name}.embedding_length") // file.field(f"{name}.attention.head_count")
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "query_pre_attn_scalar": by_width if is_27b else head_dim(file),
    }


def _rope_scaling(file: GgufFile) -> dict[str, Any] | None:
    if ROPE_FACTORS in file.tensor_names():
        return _llama3_scaling(file)
    prefix = f"{file.architecture}.rope.scaling"
    kind = file.get(f"{prefix}.type", "none")
    factor = file.get(f"{prefix}.factor")
    if kind == "none" or factor is None:
        return None
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = file.get(f"{prefix}.original_context_length")
        scaling = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": original}
        betas = {f"beta_{side}": file.get(f"{prefix}.yarn_beta_{side}") for side in ("fast", "slow")}
        return scaling | {beta: value for beta, value in betas.items() if value is not None}
    raise ModelLoadError(f"{file.path}: rope scaling {kind!r} is not supported; linear, yarn and Llama 3's are")


def _llama3_scaling(file: GgufFile) -> dict[str, Any] | None:
    """The Llama 3 rope scaling whose factors the file holds. The largest is that of the longest wavelengths."""
    found = file.values(ROPE_FACTORS)
    factor = float(found.max())
    if factor == 1.0:
        return None
    theta = file.get(f"{file.architecture}.rope.freq_base", 10000.0)
    expected = llama3_rope_factors(theta, head_dim(file), factor)
    if found.shape != expected.shape or not np.allclose(found, expected, rtol=1e-3):
        raise ModelLoadError(f"{file.path}: the factors in {ROPE_FACTORS} are not those of Llama 3's rope scaling")
    return {
        "rope_type": "llama3",
        "factor": factor,
        "low_freq_factor": LLAMA3_LOW_FREQ,
        "high_freq_factor": LLAMA3_HIGH_FREQ,
        "original_max_position_embeddings": LLAMA3_CONTEXT,
    }


def llama3_rope_factors(theta: float, width: int, factor: float) -> npt.NDArray[np.float32]:
    """By what each of the `width / 2` frequencies is divided: 1 for short waves, up to `factor` for long ones."""
    wavelengths = 2 * math.pi * theta ** (np.arange(0, width, 2, dtype=np.float64) / width)
    span = LLAMA3_HIGH_FREQ - LLAMA3_LOW_FREQ
    share = np.clip((LLAMA3_CONTEXT / wavelengths - LLAMA3_LOW_FREQ) / span, 0.0, 1.0)
    return (1.0 / ((1.0 - share) / factor + share)).astype(np.float32)


_ARCHITECTURES: dict[str, Callable[[GgufFile], dict[str, Any]]] = {
    "llama": _llama,
    "qwen2": _qwen2,
    "qwen3": _qwen3,
    "gemma2": _gemma2,
    "gemma3": _gemma3,
}
