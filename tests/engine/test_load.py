"""Loading and fingerprints: what is missing is named, what is equal is recognised, no tensor is held twice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from engine.build import EngineConfig, build_engine
from engine.load import load_decoder
from engine.model_config import ModelConfig
from engine.weights import LazyWeights, MemoryWeights, fingerprint
from protocol.errors import ConfigError, ModelLoadError
from tests.support.generate import greedy_tokens
from tests.support.tiny_model import TINY_FAMILIES, tiny_engine, tiny_hf_config, tiny_weights

CPU = torch.device("cpu")


def _tensors(config: ModelConfig, seed: int = 0) -> dict[str, torch.Tensor]:
    source = tiny_weights(config, seed)
    return {name: source.take(name) for name in source.names()}


def _load(config: ModelConfig, tensors: dict[str, torch.Tensor]) -> None:
    load_decoder(config, MemoryWeights(tensors), CPU, torch.float32)


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_each_missing_or_misshapen_tensor_is_named(family: str) -> None:
    """Whichever tensor is left out or of a wrong shape, the error names it."""
    config = ModelConfig.from_hf(tiny_hf_config(family))
    tensors = _tensors(config)
    for name, tensor in tensors.items():
        with pytest.raises(ModelLoadError, match=name):
            _load(config, {other: value for other, value in tensors.items() if other != name})
        with pytest.raises(ModelLoadError, match=name):
            _load(config, {**tensors, name: torch.cat((tensor, tensor))})


def test_tensors_are_taken_once_and_one_at_a_time() -> None:
    """A source sees each name at most once, and nothing is read before all names are known to be there."""
    config = ModelConfig.from_hf(tiny_hf_config())
    tensors = _tensors(config)
    taken: list[str] = []

    def reader(name: str) -> torch.Tensor:
        taken.append(name)
        return tensors[name]

    source = LazyWeights({name: (lambda name=name: reader(name)) for name in tensors})  # type: ignore[misc]
    load_decoder(config, source, CPU, torch.float32)
    assert sorted(taken) == sorted(tensors)
    taken.clear()
    with pytest.raises(ModelLoadError):
        load_decoder(ModelConfig.from_hf(tiny_hf_config(num_hidden_layers=4)), source, CPU, torch.float32)
    assert taken == []


def test_names_of_a_multimodal_checkpoint_are_understood() -> None:
    """A checkpoint with prefixed names and tensors of other parts loads as the text model alone."""
    config = ModelConfig.from_hf(tiny_hf_config("gemma3"))
    tensors = {f"language_model.{name}": value for name, value in _tensors(config).items()}
    tensors["vision_tower.weight"] = torch.zeros(3)
    settings = EngineConfig(num_blocks=4, attention="reference")
    found = build_engine(settings, config, MemoryWeights(tensors))
    assert greedy_tokens(found, [3, 4, 5], 5, [0]) == greedy_tokens(tiny_engine(family="gemma3"), [3, 4, 5], 5, [0])


def test_half_precision_on_disk_computes_in_float32() -> None:
    """Weights stored in bfloat16 give what the same rounded weights give in float32."""
    config = ModelConfig.from_hf(tiny_hf_config())
    halves = {name: tensor.bfloat16() for name, tensor in _tensors(config).items()}
    settings = EngineConfig(num_blocks=4, attention="reference")
    found = build_engine(settings, config, MemoryWeights(halves))
    wide = build_engine(settings, config, MemoryWeights({name: half.float() for name, half in halves.items()}))
    assert greedy_tokens(found, [3, 4, 5], 8, [0]) == greedy_tokens(wide, [3, 4, 5], 8, [0])


def test_bfloat16_is_close_to_float32() -> None:
    """The decoder also computes in bfloat16, within that dtype's precision."""
    config = ModelConfig.from_hf(tiny_hf_config("gemma3"))
    settings = EngineConfig(num_blocks=4, attention="reference", compute_dtype="bfloat16")
    engine = build_engine(settings, config, tiny_weights(config))
    assert engine.layout.dtype == "bfloat16"
    assert len(greedy_tokens(engine, [3, 4, 5], 5, [0])) == 5


def test_fingerprint_tells_models_apart() -> None:
    """Other weights, one other tensor or another configuration change the fingerprint; the order of reading not."""
    config = ModelConfig.from_hf(tiny_hf_config())
    tensors = _tensors(config)
    same = fingerprint(config, MemoryWeights(dict(reversed(tensors.items()))))
    assert same == fingerprint(config, MemoryWeights(tensors))
    name = "model.layers.1.mlp.down_proj.weight"
    others = [
        fingerprint(config, MemoryWeights(_tensors(config, seed=1))),
        fingerprint(config, MemoryWeights({**tensors, name: tensors[name] + 1.0})),
        fingerprint(config, MemoryWeights({**tensors, name: tensors[name].half()})),
        fingerprint(ModelConfig.from_hf(tiny_hf_config(rope_theta=7.0)), MemoryWeights(tensors)),
    ]
    assert len({same, *others}) == 5


def test_fingerprint_ignores_how_the_model_is_run() -> None:
    """The dtypes of computation and cache, the block size and the end tokens are no part of the model."""
    expected = tiny_engine().layout.model_fingerprint
    assert tiny_engine(kv_dtype="float16", block_size=4, eos_token_id=[3, 4]).layout.model_fingerprint == expected


def test_fingerprint_is_equal_in_two_processes() -> None:
    """Another process, with another hash seed, computes the same fingerprint."""
    code = "from tests.support.tiny_model import tiny_engine; print(tiny_engine(seed=5).layout.model_fingerprint)"
    root = Path(__file__).parents[2]
    environment = {"PYTHONHASHSEED": "77", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == tiny_engine(seed=5).layout.model_fingerprint


@pytest.mark.parametrize(
    ("settings", "param"),
    [
        ({"device": "tpu"}, "device"),
        ({"device": "mps"}, "device"),
        ({"compute_dtype": "int8"}, "compute_dtype"),
        ({"kv_dtype": "int8"}, "kv_dtype"),
        ({"attention": "magic"}, "attention"),
        ({"num_blocks": 0}, "num_blocks"),
        ({"kv_cache_bytes": 100}, "kv_cache_bytes"),
        ({"num_blocks": 4, "kv_cache_bytes": 4096}, "kv_cache_bytes"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, object], param: str) -> None:
    """A setting that cannot be used is an error of configuration that names it."""
    config = ModelConfig.from_hf(tiny_hf_config())
    with pytest.raises(ConfigError) as caught:
        build_engine(EngineConfig(**{"attention": "reference", **settings}), config, tiny_weights(config))  # type: ignore[arg-type]
    assert caught.value.param == param


def test_cache_size_follows_the_memory_given() -> None:
    """`kv_cache_bytes` is what the pool takes, to the block; without it the CPU's default is used."""
    config = ModelConfig.from_hf(tiny_hf_config())
    engine = build_engine(EngineConfig(kv_cache_bytes=1_000_000, attention="reference"), config, tiny_weights(config))
    block_bytes = engine.layout.bytes_per_token * 16
    assert engine.num_blocks == 1_000_000 // block_bytes
    assert engine.cache.pool.nbytes == engine.num_blocks * block_bytes
    default = build_engine(EngineConfig(attention="reference"), config, tiny_weights(config))
    assert default.num_blocks == 2**30 // block_bytes
