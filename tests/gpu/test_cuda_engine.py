"""The engine on a CUDA device against the engine on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from engine.batch import StepBatch
from engine.build import EngineConfig, build_engine
from engine.engine import Engine
from engine.model_config import ModelConfig
from tests.support.generate import greedy_tokens, slice_of
from tests.support.tiny_model import TINY_FAMILIES, tiny_engine, tiny_hf_config, tiny_weights

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device here"),
]
SETTINGS = EngineConfig(device="cuda", compute_dtype="float32", num_blocks=64)


def _engine(family: str, settings: EngineConfig = SETTINGS) -> Engine:
    config = ModelConfig.from_hf(tiny_hf_config(family))
    return build_engine(settings, config, tiny_weights(config))


@pytest.mark.parametrize("family", TINY_FAMILIES)
@pytest.mark.parametrize("use_cuda_graphs", [False, True])
def test_text_equals_that_of_the_cpu(family: str, use_cuda_graphs: bool) -> None:
    """Greedy text in float32 is the same on both devices, with and without graphs."""
    prompt = list(range(3, 40))
    engine = _engine(family, replace(SETTINGS, use_cuda_graphs=use_cuda_graphs))
    assert greedy_tokens(engine, prompt, 30, [3, 1, 5, 2, 9]) == greedy_tokens(
        tiny_engine(family=family), prompt, 30, range(5)
    )


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_mixed_batches_equal_those_of_the_cpu(family: str) -> None:
    """A prefill, a later chunk and decodes in one batch give the CPU's logits."""
    steps = [
        StepBatch((slice_of(list(range(20)), 0, [4, 5, 6], "a"), slice_of([7], 0, [8], "b"))),
        StepBatch(
            (slice_of(list(range(9)), 20, [4, 5, 6], "a"), slice_of([3], 1, [8], "b"), slice_of([4] * 5, 0, [1], "c"))
        ),
        StepBatch((slice_of([9], 29, [4, 5, 6], "a"), slice_of([3], 2, [8], "b"), slice_of([4], 5, [1], "c"))),
    ]
    ours, theirs = _engine(family), tiny_engine(family=family)
    for batch in steps:
        torch.testing.assert_close(ours.logits(batch).cpu(), theirs.logits(batch), atol=2e-3, rtol=0)


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_bfloat16_runs(family: str) -> None:
    """The default dtype on CUDA prefills and decodes, and stores KV in bfloat16."""
    engine = _engine(family, replace(SETTINGS, compute_dtype="auto"))
    assert engine.layout.dtype == "bfloat16"
    assert len(greedy_tokens(engine, list(range(3, 40)), 20, range(5))) == 20


def test_cache_takes_its_share_of_free_memory() -> None:
    """Without a size the KV cache takes most of what the weights have left free."""
    free = torch.cuda.mem_get_info()[0]
    engine = _engine("llama", replace(SETTINGS, num_blocks=None))
    assert 0.7 * free < engine.cache.pool.nbytes < 0.9 * free
