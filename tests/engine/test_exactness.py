"""The decoder against transformers: every family, every way to cut a prompt, alone and mixed."""

from __future__ import annotations

import functools
import random
from typing import Any

import pytest
import torch

from engine.batch import StepBatch
from tests.support.generate import logits_in_chunks, slice_of
from tests.support.hf_model import hf_logits
from tests.support.tiny_model import TINY_FAMILIES, tiny_engine, tiny_hf_config

TOLERANCE = 1e-4

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{family: (family, {}) for family in TINY_FAMILIES},
    "llama-tied-biased": ("llama", {"tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True}),
    "llama-linear-rope": ("llama", {"rope_scaling": {"type": "linear", "factor": 2.5}, "num_key_value_heads": 1}),
    "llama-plain-rope": ("llama", {"rope_scaling": None, "num_key_value_heads": 4, "rope_theta": 500000.0}),
    "mistral-no-window": ("mistral", {"sliding_window": None}),
    "qwen2-no-window": ("qwen2", {"use_sliding_window": False}),
    "qwen3-biased": ("qwen3", {"attention_bias": True, "tie_word_embeddings": False}),
    "gemma2-untied": ("gemma2", {"tie_word_embeddings": False, "attention_bias": True}),
    "gemma3-capped": ("gemma3", {"final_logit_softcapping": 2.0}),
}


@functools.cache
def _prompt(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(97), k=length)


@functools.cache
def _oracle(variant: str, length: int, seed: int) -> torch.Tensor:
    family, overrides = VARIANTS[variant]
    return hf_logits(tiny_hf_config(family, **overrides), _prompt(length, seed))


def _check(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert expected.std() > 0.1, "an oracle that is nearly constant proves nothing"
    torch.testing.assert_close(found, expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize(
    ("block_size", "chunks"),
    [(16, [43]), (16, [1] * 43), (5, [1, 2, 3, 7, 11, 19]), (1, [16, 16, 11]), (16, [15, 1, 1, 17, 9]), (64, [42, 1])],
)
def test_logits_equal_transformers(variant: str, block_size: int, chunks: list[int]) -> None:
    """Logits do not depend on how a prompt is cut into chunks and blocks, and are those of transformers."""
    family, overrides = VARIANTS[variant]
    engine = tiny_engine(family=family, block_size=block_size, num_blocks=80, **overrides)
    block_ids = random.Random(block_size).sample(range(80), k=-(-43 // block_size))
    _check(logits_in_chunks(engine, _prompt(43, 1), chunks, block_ids), _oracle(variant, 43, 1))


@pytest.mark.parametrize("variant", ["llama", "mistral", "gemma2", "gemma3"])
def test_long_contexts_equal_transformers(variant: str) -> None:
    """Far beyond windows and the context that a scaled rope was made for, logits are still those of transformers."""
    family, overrides = VARIANTS[variant]
    engine = tiny_engine(family=family, num_blocks=32, **overrides)
    found = logits_in_chunks(engine, _prompt(400, 2), [256, 100, 43, 1], range(31, -1, -1))
    _check(found, _oracle(variant, 400, 2))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("block_size", [3, 16])
def test_mixed_batches_equal_transformers(variant: str, block_size: int) -> None:
    """Sequences that prefill, continue and decode in one batch do not disturb each other."""
    family, overrides = VARIANTS[variant]
    engine = tiny_engine(family=family, block_size=block_size, num_blocks=64, **overrides)
    lengths = {"a": 30, "b": 17, "c": 41}
    order = iter(random.Random(7).sample(range(64), k=64))
    tables = {name: [next(order) for _ in range(-(-length // block_size))] for name, length in lengths.items()}
    prompts = {name: _prompt(length, 10 + length) for name, length in lengths.items()}
    found: dict[str, list[torch.Tensor]] = {name: [] for name in lengths}
    done = dict.fromkeys(lengths, 0)
    for plan in ({"a": 29, "b": 5}, {"b": 11, "a": 1, "c": 13}, {"c": 27, "b": 1}, {"c": 1}):
        parts = tuple(
            slice_of(prompts[name][done[name] : done[name] + size], done[name], tables[name], name)
            for name, size in plan.items()
        )
        logits = engine.logits(StepBatch(parts))
        first = 0
        for name, size in plan.items():
            found[name].append(logits[first : first + size])
            done[name] += size
            first += size
    for name, length in lengths.items():
        _check(torch.cat(found[name]), _oracle(variant, length, 10 + length))
