"""Tiny GGUF files, written as llama.cpp's converter would write the given Hugging Face model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

CHAT_TEMPLATE = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CORPUS = ["the quick brown fox jumps over the lazy dog", "in 2024 there were 365 days and 12 months"] * 4
NUM_LAYERS = 2

Arrays = Mapping[str, npt.NDArray[np.float32]]


@dataclass
class GgufSpec:
    """What goes into a file: `architecture`, metadata below it, Hugging Face tensors, and how they are stored."""

    architecture: str
    fields: dict[str, Any]
    tensors: Arrays
    quantization: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32
    extra: dict[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    pre: str = "smollm"


def write_gguf(path: Path, spec: GgufSpec) -> None:
    """Writes the file with a byte-level tokenizer of `CORPUS`."""
    writer = gguf.GGUFWriter(path, spec.architecture)
    for key, value in spec.fields.items():
        _add(writer, f"{spec.architecture}.{key}", value)
    add_byte_level_tokenizer(writer, spec.pre)
    arch = next(each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == spec.architecture)
    names = gguf.get_tensor_name_map(arch, NUM_LAYERS)
    for hf_name, values in spec.tensors.items():
        stem, _, kind = hf_name.rpartition(".")
        stored = as_llama_cpp_stores(spec, hf_name, values)
        raw_dtype = spec.quantization if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(
            f"{names.get_name(stem)}.{kind}", gguf.quants.quantize(stored, raw_dtype), raw_dtype=raw_dtype
        )
    for name, values in spec.extra.items():
        writer.add_tensor(name, values)
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    """Writes everything that was added and closes the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def as_llama_cpp_stores(spec: GgufSpec, name: str, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Llama's q and k with the halves of each head interleaved; Gemma's norms with 1 added; the rest as it is."""
    if spec.architecture == "llama" and (".q_proj." in name or ".k_proj." in name):
        key = "attention.head_count" if ".q_proj." in name else "attention.head_count_kv"
        heads, half = spec.fields[key], values.shape[0] // spec.fields[key] // 2
        order = [head * 2 * half + part * half + i for head in range(heads) for i in range(half) for part in (0, 1)]
        return np.ascontiguousarray(values[order])
    if spec.architecture.startswith("gemma") and name.endswith("norm.weight"):
        return values + np.float32(1.0)
    return values


def trained_byte_level() -> Tokenizer:
    """A small byte-level BPE tokenizer with chat tokens, splitting text as SmolLM2 does."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320, special_tokens=SPECIAL_TOKENS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def add_byte_level_tokenizer(writer: gguf.GGUFWriter, pre: str) -> None:
    """Adds `trained_byte_level` as llama.cpp describes a byte-level tokenizer."""
    state = _state(trained_byte_level())
    vocab: dict[str, int] = state["model"]["vocab"]
    tokens = sorted(vocab, key=lambda token: vocab[token])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIAL_TOKENS else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in state["model"]["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_pad_token_id(2)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)


def _state(tokenizer: Tokenizer) -> dict[str, Any]:
    state: dict[str, Any] = json.loads(tokenizer.to_str())
    return state


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)
