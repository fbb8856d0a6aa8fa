"""The CUDA attention's arithmetic, run on the CPU, against the reference; and the padding of its graphs."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch

from engine.attention.cuda import CudaAttention
from engine.attention.interface import AttentionBackend, build_metadata
from engine.attention.reference import ReferenceAttention
from engine.batch import StepBatch
from engine.cuda_graphs import DecodeGraphs
from engine.engine import Engine
from engine.kv_cache import KvCache
from engine.load import load_decoder
from engine.model_config import ModelConfig
from protocol.layout import KvDtype, KvLayout
from tests.support.generate import slice_of
from tests.support.tiny_model import TINY_FAMILIES, tiny_hf_config, tiny_weights

CPU = torch.device("cpu")
LENGTHS = {"a": 23, "b": 9, "c": 40, "d": 1}
PLANS = ({"a": 22, "b": 3}, {"b": 5, "a": 1, "c": 17, "d": 1}, {"c": 22, "b": 1}, {"c": 1})
"""Sizes of the slices of each step: prefill only, all mixed, a chunk beside a decode, a decode alone."""


def _config(family: str) -> ModelConfig:
    return ModelConfig.from_hf(tiny_hf_config(family))


def _cache(config: ModelConfig, block_size: int) -> KvCache:
    layout = KvLayout("m", config.num_layers, config.num_kv_heads, config.head_dim, KvDtype.FLOAT32, block_size)
    cache = KvCache(layout, 80, CPU)
    # Gathered blocks may have slots that were never written; on CUDA the pool starts as zeros.
    cache.pool.zero_()
    return cache


def _run(backend: AttentionBackend, config: ModelConfig, block_size: int) -> list[torch.Tensor]:
    """What every layer of every step attends to, for random heads that are the same for all backends."""
    cache = _cache(config, block_size)
    generator = torch.Generator().manual_seed(3)
    order = iter(random.Random(5).sample(range(80), k=80))
    tables = {name: [next(order) for _ in range(-(-length // block_size))] for name, length in LENGTHS.items()}
    done = dict.fromkeys(LENGTHS, 0)
    found = []
    for plan in PLANS:
        parts = tuple(slice_of([1] * size, done[name], tables[name], name) for name, size in plan.items())
        batch = StepBatch(parts)
        step = backend.begin(build_metadata(batch, block_size, CPU), cache)
        for layer in range(config.num_layers):
            heads = config.num_heads + 2 * config.num_kv_heads
            qkv = torch.randn(batch.num_tokens, heads, config.head_dim, generator=generator)
            query, key, value = qkv.split_with_sizes([config.num_heads, config.num_kv_heads, config.num_kv_heads], 1)
            found.append(step.attend(layer, query, key, value))
        for name, size in plan.items():
            done[name] += size
    return found


@pytest.mark.parametrize("family", TINY_FAMILIES)
@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_equals_the_reference(family: str, block_size: int) -> None:
    """Windows, soft caps, shared KV heads, chunks and decodes come out as in the reference."""
    config = _config(family)
    expected = _run(ReferenceAttention(config), config, block_size)
    for found, wanted in zip(_run(CudaAttention(config), config, block_size), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("num_sequences", [1, 2, 3, 5, 32, 33])
def test_padded_decodes_equal_plain_ones(family: str, num_sequences: int) -> None:
    """A decode through graph buffers, padded in rows and in blocks, gives the logits and the cache of a plain one."""
    plain, captured = _graph_pair(family)
    prompts = [list(range(3, 4 + index % 20)) for index in range(num_sequences)]
    tables = [[2 * index, 2 * index + 1] for index in range(num_sequences)]
    prefill = [
        slice_of(prompt, 0, table, str(index))
        for index, (prompt, table) in enumerate(zip(prompts, tables, strict=True))
    ]
    decode = [
        slice_of([9], len(prompt), table, str(index))
        for index, (prompt, table) in enumerate(zip(prompts, tables, strict=True))
    ]
    for batch in (StepBatch(tuple(prefill)), StepBatch(tuple(decode)), StepBatch(tuple(decode))):
        torch.testing.assert_close(captured.logits(batch), plain.logits(batch), atol=1e-5, rtol=0)
    torch.testing.assert_close(captured.cache.pool, plain.cache.pool, atol=1e-5, rtol=0)


def _graph_pair(family: str) -> tuple[Engine, Engine]:
    """The same model twice: plain, and with graphs that are not captured but run."""
    config = _config(family)
    engines = []
    for has_graphs in (False, True):
        decoder = load_decoder(config, tiny_weights(config), CPU, torch.float32)
        layout = KvLayout("m", config.num_layers, config.num_kv_heads, config.head_dim, KvDtype.FLOAT32, 16)
        cache = KvCache(layout, 80, CPU)
        cache.pool.zero_()
        attention = CudaAttention(config)
        graphs = DecodeGraphs(decoder, cache, attention, _run_instead) if has_graphs else None
        engines.append(Engine(decoder, cache, attention, graphs))
    return engines[0], engines[1]


def _run_instead(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    return run
