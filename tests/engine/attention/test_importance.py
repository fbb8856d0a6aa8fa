"""Importance against transformers' own attention weights, over chunks, batches and ways to attend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import pytest
import torch

from engine.attention.cuda import CudaAttention
from engine.attention.importance import MAX_QUERIES, observed_layers
from engine.attention.interface import AttentionBackend
from engine.batch import SequenceSlice, StepBatch, TokenImportance
from engine.cuda_graphs import DecodeGraphs
from engine.engine import Engine
from engine.kv_cache import KvCache
from engine.load import load_decoder
from engine.model_config import ModelConfig
from protocol.layout import KvDtype, KvLayout
from tests.support.generate import GREEDY, draw_of, slice_of
from tests.support.hf_model import hf_model
from tests.support.oracle import prompt_of
from tests.support.tiny_model import TINY_FAMILIES, tiny_engine, tiny_hf_config, tiny_weights

CPU = torch.device("cpu")
NUM_LAYERS = 6
PROMPT = prompt_of(150, 97)
BLOCKS = [7, 3, 9, 1, 0, 12, 5, 6, 11, 2]


@cache
def _weights(family: str) -> torch.Tensor:
    """`[layer, head, query, key]`: what transformers' queries pay."""
    model = hf_model(tiny_hf_config(family, num_hidden_layers=NUM_LAYERS))
    with torch.inference_mode():
        return torch.cat(model(torch.tensor([PROMPT]), output_attentions=True).attentions)


def _expected(family: str, start: int, end: int) -> torch.Tensor:
    """The definition: the mean over the observed layers, all heads and the slice's last queries."""
    first = max(start, end - MAX_QUERIES)
    return _weights(family)[list(observed_layers(NUM_LAYERS)), :, first:end, :end].mean(dim=(0, 1, 2))


def _engine(family: str = "llama", attention: str = "reference") -> Engine:
    if attention != "cuda":
        return tiny_engine(family=family, num_hidden_layers=NUM_LAYERS, attention=attention)
    config = ModelConfig.from_hf(tiny_hf_config(family, num_hidden_layers=NUM_LAYERS))
    return _assembled(config, CudaAttention(config), has_graphs=False)


def _assembled(config: ModelConfig, attention: AttentionBackend, *, has_graphs: bool) -> Engine:
    decoder = load_decoder(config, tiny_weights(config), CPU, torch.float32)
    layout = KvLayout("m", config.num_layers, config.num_kv_heads, config.head_dim, KvDtype.FLOAT32, 16)
    kv = KvCache(layout, 64, CPU)
    kv.pool.zero_()
    return Engine(decoder, kv, attention, DecodeGraphs(decoder, kv, attention, _refuse) if has_graphs else None)


def _refuse(run: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    raise AssertionError("a graph was captured")


def _watched(start: int, end: int, *, is_sampled: bool = False) -> SequenceSlice:
    draws = (draw_of(GREEDY),) if is_sampled else ()
    return SequenceSlice("w", PROMPT[start:end], start, BLOCKS, draws, wants_importance=True)


def _chunks(engine: Engine, sizes: Sequence[int], others: tuple[SequenceSlice, ...] = ()) -> list[TokenImportance]:
    found, start = [], 0
    for size in sizes:
        part = _watched(start, start + size, is_sampled=start + size == len(PROMPT))
        result = engine.step(StepBatch((*others, part)))
        assert list(result.importance) == ["w"]
        found.append(result.importance["w"])
        start += size
    return found


@pytest.mark.parametrize("family", TINY_FAMILIES)
@pytest.mark.parametrize("attention", ["reference", "fast", "cuda"])
def test_equals_the_attention_of_transformers(family: str, attention: str) -> None:
    """Soft caps, windows, biases, norms and shared KV heads count as in the model itself, chunk after chunk."""
    sizes, start = [5, 3, 82, 1, 5, 54], 0
    for size, found in zip(sizes, _chunks(_engine(family, attention), sizes), strict=True):
        assert found.dtype == np.float32
        torch.testing.assert_close(torch.from_numpy(found), _expected(family, start, start + size), atol=1e-5, rtol=0)
        start += size


@pytest.mark.parametrize("sizes", [[150], [64, 86], [63, 65, 22], [86, 64], [1, 149]])
def test_only_the_last_queries_of_the_slice_count(sizes: list[int]) -> None:
    """At most `MAX_QUERIES` of them, and none of an earlier slice, wherever chunks end."""
    start = 0
    for size, found in zip(sizes, _chunks(_engine(), sizes), strict=True):
        np.testing.assert_allclose(found, _expected("llama", start, start + size), atol=1e-5)
        start += size


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_a_query_has_one_in_all_to_pay(family: str) -> None:
    """All positions together have 1, and none has less than nothing."""
    for found in _chunks(_engine(family), [33, 117]):
        assert found.sum() == pytest.approx(1.0, abs=1e-5)
        assert found.min() >= 0.0


@pytest.mark.parametrize("attention", ["reference", "fast", "cuda"])
def test_does_not_depend_on_the_batch(attention: str) -> None:
    """Beside a chunk and a decode, of which one is not watched, it is what it is alone."""
    alone = _chunks(_engine(attention=attention), [80, 70])
    others = (slice_of([5, 6, 7], 0, [20], "other", is_sampled=False), slice_of([9], 0, [21], "decode"))
    beside = _chunks(_engine(attention=attention), [80, 70], others)
    for one, other in zip(alone, beside, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_several_slices_are_watched_at_once() -> None:
    """Each gets its own, and the tokens drawn are those of a step that watches nobody."""
    first = _watched(0, 40, is_sampled=True)
    second = SequenceSlice("v", PROMPT[40:60], 0, [20, 21], (draw_of(GREEDY),), wants_importance=True)
    together = _engine().step(StepBatch((first, second)))
    plain = _engine().step(
        StepBatch((slice_of(PROMPT[:40], 0, BLOCKS, "w"), slice_of(PROMPT[40:60], 0, [20, 21], "v")))
    )
    alone = _engine().step(StepBatch((second,)))
    assert {name: len(found) for name, found in together.importance.items()} == {"w": 40, "v": 20}
    np.testing.assert_allclose(together.importance["v"], alone.importance["v"], atol=1e-6)
    assert together.tokens == plain.tokens
    assert not plain.importance


def test_a_narrow_cache_counts_as_it_was_stored() -> None:
    """With K rounded to bfloat16 the weights are those of the rounded K: near the exact ones, not equal."""
    narrow = tiny_engine(num_hidden_layers=NUM_LAYERS, kv_dtype="bfloat16")
    (found,) = _chunks(narrow, [150])
    (exact,) = _chunks(_engine(), [150])
    np.testing.assert_allclose(found, exact, atol=2e-3)
    assert not np.array_equal(found, exact)


def test_a_graph_is_bypassed() -> None:
    """A decode that is watched runs without its graph, which has no place for an observer."""
    config = ModelConfig.from_hf(tiny_hf_config(num_hidden_layers=NUM_LAYERS))
    engine = _assembled(config, CudaAttention(config), has_graphs=True)
    engine.step(StepBatch((_watched(0, 40),)))
    result = engine.step(StepBatch((_watched(40, 41, is_sampled=True),)))
    np.testing.assert_allclose(result.importance["w"], _expected("llama", 40, 41), atol=1e-5)
    with pytest.raises(AssertionError, match="captured"):
        engine.step(StepBatch((slice_of([5], 41, BLOCKS),)))


def test_few_layers_are_observed() -> None:
    """Two in seven, among them sliding and global ones whether they alternate or every sixth is global."""
    assert [observed_layers(number) for number in (1, 2, 3)] == [(0,), (1,), (2,)]
    assert observed_layers(30) == (2, 5, 9, 12, 16, 19, 23, 26)
    for period in (2, 6):
        assert {layer % period == period - 1 for layer in observed_layers(18)} == {True, False}
