"""The CPU's attention against the reference, over a cache in which every slot that was not written is a NaN."""

from __future__ import annotations

import dataclasses
import random

import pytest
import torch

from engine.attention import fast_cpu
from engine.attention.fast_cpu import FastCpuAttention
from engine.attention.interface import AttentionBackend, build_metadata
from engine.attention.reference import ReferenceAttention
from engine.batch import StepBatch
from engine.kv_cache import KvCache
from engine.model_config import ModelConfig
from protocol.layout import KvDtype, KvLayout
from tests.support.generate import slice_of
from tests.support.tiny_model import TINY_FAMILIES, tiny_hf_config

CPU = torch.device("cpu")
LENGTHS = {"a": 25, "b": 9, "c": 42, "d": 1}
Plans = tuple[dict[str, int], ...]
PLANS: Plans = (
    {"a": 9, "b": 3},
    {"b": 5, "a": 1, "c": 17, "d": 1},
    {"c": 22, "b": 1, "a": 14},
    {"c": 1},
    {"a": 1, "c": 2},
)
"""Sizes of the slices of each step: whole prompts, all mixed, chunks beside a decode, a decode alone, a short chunk."""


LONG_PLANS: Plans = (
    {"run": 63, "short run": 40, "scattered": 90, "other run": 64},
    {"run": 1, "short run": 1, "scattered": 1, "other run": 1},
    {"other run": 5, "run": 1, "scattered": 1},
    {"run": 1, "other run": 1},
)
"""Decodes around the length from which a run of blocks is attended to in place, alone and beside the others."""


def _long_tables(block_size: int) -> dict[str, list[int]]:
    """Runs of neighbours in the middle of the pool, and one table that is none although it looks like one at its ends."""
    num_blocks = -(-100 // block_size)
    starts = {"run": 7, "short run": 7 + num_blocks, "other run": 7 + 2 * num_blocks, "scattered": 7 + 3 * num_blocks}
    tables = {name: list(range(start, start + num_blocks)) for name, start in starts.items()}
    tables["scattered"][1:3] = reversed(tables["scattered"][1:3])
    return tables


def _run(
    backend: AttentionBackend,
    config: ModelConfig,
    block_size: int,
    kv_dtype: KvDtype,
    tables: dict[str, list[int]] | None = None,
    plans: Plans = PLANS,
) -> list[torch.Tensor]:
    """What every layer of every step attends to, for random heads that are the same for all backends."""
    layout = KvLayout("m", config.num_layers, config.num_kv_heads, config.head_dim, kv_dtype, block_size)
    cache = KvCache(layout, 80 if tables is None else 8 + sum(map(len, tables.values())), CPU)
    cache.pool.fill_(float("nan"))
    generator = torch.Generator().manual_seed(3)
    order = iter(random.Random(5).sample(range(80), k=80))
    if tables is None:
        tables = {name: [next(order) for _ in range(-(-length // block_size))] for name, length in LENGTHS.items()}
    done = dict.fromkeys(tables, 0)
    found = []
    for plan in plans:
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


def _assert_equal(config: ModelConfig, block_size: int, kv_dtype: KvDtype = KvDtype.FLOAT32) -> None:
    expected = _run(ReferenceAttention(config), config, block_size, kv_dtype)
    for found, wanted in zip(_run(FastCpuAttention(config), config, block_size, kv_dtype), expected, strict=True):
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("family", TINY_FAMILIES)
@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_equals_the_reference(family: str, block_size: int) -> None:
    """Windows, soft caps, shared KV heads, whole prompts, chunks and decodes; no unwritten slot leaks in."""
    _assert_equal(ModelConfig.from_hf(tiny_hf_config(family)), block_size)


@pytest.mark.parametrize("kv_dtype", [KvDtype.FLOAT16, KvDtype.BFLOAT16])
def test_reads_a_cache_of_another_dtype(kv_dtype: KvDtype) -> None:
    """K and V of half precision are attended to in the dtype of the queries."""
    _assert_equal(ModelConfig.from_hf(tiny_hf_config()), 16, kv_dtype)


@pytest.mark.parametrize(("num_heads", "num_kv_heads", "head_dim"), [(1, 1, 2), (6, 6, 8), (8, 1, 20), (9, 3, 64)])
def test_heads_of_any_number_and_size(num_heads: int, num_kv_heads: int, head_dim: int) -> None:
    """From one KV head for all to one for each, and sizes that fill no vector."""
    config = dataclasses.replace(
        ModelConfig.from_hf(tiny_hf_config()), num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim
    )
    _assert_equal(config, 16)


@pytest.mark.parametrize("window", [1, 3, 9, 10, 1000])
def test_windows_around_the_length_of_a_prompt(window: int) -> None:
    """A window that hides nothing of a whole prompt may take the causal short cut; one that hides a key may not."""
    config = ModelConfig.from_hf(tiny_hf_config())
    layers = tuple(dataclasses.replace(layer, window=window) for layer in config.layers)
    _assert_equal(dataclasses.replace(config, layers=layers), 16)


@pytest.mark.parametrize("family", TINY_FAMILIES)
@pytest.mark.parametrize("block_size", [1, 5, 16])
@pytest.mark.parametrize("kv_dtype", [KvDtype.FLOAT32, KvDtype.BFLOAT16])
@pytest.mark.parametrize("joined_from", [64, fast_cpu.MIN_JOINED_TOKENS])
def test_neighbouring_blocks_are_attended_to_in_place(
    family: str, block_size: int, kv_dtype: KvDtype, joined_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long contexts in runs of blocks equal the reference, beside scattered and short ones and beside a chunk; and so do
    scattered ones whose runs are joined.
    """
    monkeypatch.setattr(fast_cpu, "MIN_JOINED_TOKENS", joined_from)
    config = ModelConfig.from_hf(tiny_hf_config(family))
    tables = _long_tables(block_size)
    expected = _run(ReferenceAttention(config), config, block_size, kv_dtype, tables, LONG_PLANS)
    found = _run(FastCpuAttention(config), config, block_size, kv_dtype, tables, LONG_PLANS)
    for one, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(one, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("window", [1, 15, 16, 17, 40, 69, 70, 1000])
def test_a_window_is_the_end_of_the_runs(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it begins: in a run, between two, or before the first."""
    monkeypatch.setattr(fast_cpu, "MIN_JOINED_TOKENS", 64)
    config = ModelConfig.from_hf(tiny_hf_config())
    layers = tuple(dataclasses.replace(layer, window=window) for layer in config.layers)
    config = dataclasses.replace(config, layers=layers)
    tables = {"a": [9, 3, 4, 12, 1, 2]}
    plans: Plans = ({"a": 70}, {"a": 1}, {"a": 1})
    expected = _run(ReferenceAttention(config), config, 16, KvDtype.FLOAT32, tables, plans)
    for one, wanted in zip(
        _run(FastCpuAttention(config), config, 16, KvDtype.FLOAT32, tables, plans), expected, strict=True
    ):
        torch.testing.assert_close(one, wanted, atol=1e-5, rtol=0)


def test_a_run_of_blocks_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """The decode of a long context over neighbours takes no gather; over scattered blocks it does, until it is long."""
    config = ModelConfig.from_hf(tiny_hf_config())
    layout = KvLayout("m", config.num_layers, config.num_kv_heads, config.head_dim, KvDtype.FLOAT32, 16)
    cache = KvCache(layout, 40, CPU)
    for table, num_gathers in (([3, 4, 5, 6, 7], 0), ([3, 5, 4, 6, 7], 1)):
        batch = StepBatch((slice_of([1], 70, table),))
        step = FastCpuAttention(config).begin(build_metadata(batch, 16, CPU), cache)
        assert (len(step.groups), len(step.alone)) == (num_gathers, 1 - num_gathers)
    monkeypatch.setattr(fast_cpu, "MIN_JOINED_TOKENS", 70)
    step = FastCpuAttention(config).begin(build_metadata(batch, 16, CPU), cache)
    assert step.alone == [(0, [(48, 64), (80, 96), (64, 80), (96, 119)])]
