"""The weights of a GGUF file, written as float32 safetensors under Hugging Face names.

Undoes what llama.cpp's converter does to the values: rows of llama's q and k are interleaved for its rope, and Gemma's
norms have 1 added. Quantised tensors become the float32 values they stand for; float16 would round those.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import save_file

from engine.checkpoint.gguf_config import ROPE_FACTORS
from engine.checkpoint.gguf_file import GgufFile
from protocol.errors import ModelLoadError

MAX_SHARD_BYTES = 1 << 30
"""Size at which a new shard is begun; also what a conversion holds in memory, beside one tensor."""

_OUTER = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_INNER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_INNER_GEMMA = _INNER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")


def write_weights(file: GgufFile, directory: Path, max_shard_bytes: int = MAX_SHARD_BYTES) -> None:
    """Writes the tensors of `file` to `directory`: `model.safetensors`, or shards with an index when they are larger.

    Raises `ModelLoadError` for a tensor that the architecture does not have.
    """
    names = {name: hf_name(file, name) for name in file.tensor_names() if name != ROPE_FACTORS}
    shards = list(_shards(file, list(names), max_shard_bytes))
    places: dict[str, str] = {}
    for index, shard in enumerate(shards, start=1):
        name = "model.safetensors" if len(shards) == 1 else f"model-{index:05}-of-{len(shards):05}.safetensors"
        tensors = {names[tensor]: _hf_values(file, tensor) for tensor in shard}
        _save(tensors, directory / name)
        places |= dict.fromkeys(tensors, name)
    if len(shards) > 1:
        total_bytes = sum(_num_bytes(file, name) for name in names)
        index_text = json.dumps({"metadata": {"total_size": total_bytes}, "weight_map": places}, indent=1)
        (directory / "model.safetensors.index.json").write_text(index_text)


def _save(tensors: dict[str, npt.NDArray[np.float32]], path: Path) -> None:
    try:
        save_file(tensors, path, metadata={"format": "pt"})
    except SafetensorError as error:
        raise ModelLoadError(f"cannot write {path}: {error}; is the disk full?") from error
    path.chmod(0o644)  # safetensors creates files that only their owner can read


def hf_name(file: GgufFile, name: str) -> str:
    """The Hugging Face name of a GGUF tensor."""
    stem, _, kind = name.rpartition(".")
    if stem in _OUTER:
        return f"{_OUTER[stem]}.{kind}"
    inner = _INNER_GEMMA if _is_gemma(file) else _INNER
    match = _LAYER.fullmatch(name)
    if match is None or match[2] not in inner:
        raise ModelLoadError(f"{file.path}: tensor {name} has no place in architecture {file.architecture}")
    return f"model.layers.{match[1]}.{inner[match[2]]}.{match[3]}"


def _hf_values(file: GgufFile, name: str) -> npt.NDArray[np.float32]:
    values = file.values(name)
    if file.architecture == "llama" and (".attn_q." in name or ".attn_k." in name):
        num_heads = file.field("llama.attention.head_count")
        if ".attn_k." in name:
            num_heads = file.get("llama.attention.head_count_kv", num_heads)
        return _deinterleave(values, num_heads)
    if _is_gemma(file) and name.endswith("norm.weight"):
        return values - np.float32(1.0)
    return values


def _deinterleave(values: npt.NDArray[np.float32], num_heads: int) -> npt.NDArray[np.float32]:
    """Rows of each head from `0, n, 1, n + 1, ...` (llama.cpp rotates neighbours) back to `0, 1, 2, ...`."""
    paired = values.reshape(num_heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(values.shape)


def _is_gemma(file: GgufFile) -> bool:
    return file.architecture.startswith("gemma")


def _num_bytes(file: GgufFile, name: str) -> int:
    return 4 * math.prod(file.shape(name))


def _shards(file: GgufFile, names: list[str], max_shard_bytes: int) -> Iterator[list[str]]:
    shard: list[str] = []
    filled_bytes = 0
    for name in names:
        num_bytes = _num_bytes(file, name)
        if shard and filled_bytes + num_bytes > max_shard_bytes:
            yield shard
            shard, filled_bytes = [], 0
        shard.append(name)
        filled_bytes += num_bytes
    yield shard
