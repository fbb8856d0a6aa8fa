"""GGUF files of every architecture come back as the Hugging Face models that they were made from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers

from engine.checkpoint.config_file import read_config
from engine.checkpoint.convert import convert
from engine.checkpoint.gguf_config import llama3_rope_factors
from engine.checkpoint.gguf_file import GgufFile
from engine.checkpoint.gguf_weights import write_weights
from engine.checkpoint.safetensors_source import SafetensorsSource
from protocol.errors import ModelLoadError
from tests.engine.checkpoint.gguf_files import NUM_LAYERS, GgufSpec, write_gguf

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": NUM_LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}
GEMMA: dict[str, Any] = {"sliding_window": 5, "query_pre_attn_scalar": 16, "attention_bias": False}
GEMMA2_CAPS = {"attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0}
GEMMA3_ROPE = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1_000_000.0},
}
GEMMA3_LAYERS = ["sliding_attention", "full_attention"]

CASES: dict[str, tuple[str, transformers.PretrainedConfig, dict[str, Any]]] = {
    "llama": ("llama", transformers.LlamaConfig(**SIZES), {}),
    "llama-untied": ("llama", transformers.LlamaConfig(**SIZES | {"tie_word_embeddings": False}), {}),
    "llama-linear": (
        "llama",
        transformers.LlamaConfig(
            **SIZES, rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 10000.0}
        ),
        {"rope.scaling.type": "linear", "rope.scaling.factor": 4.0},
    ),
    "llama3": ("llama", transformers.LlamaConfig(**SIZES, rope_parameters=LLAMA3), {}),
    "qwen2": ("qwen2", transformers.Qwen2Config(**SIZES), {}),
    "qwen3": ("qwen3", transformers.Qwen3Config(**SIZES), {}),
    "gemma2": (
        "gemma2",
        transformers.Gemma2Config(**SIZES, **GEMMA, **GEMMA2_CAPS),
        {"attention.sliding_window": 5, "attn_logit_softcapping": 40.0, "final_logit_softcapping": 20.0},
    ),
    "gemma3": (
        "gemma3",
        transformers.Gemma3TextConfig(**SIZES, **GEMMA, rope_parameters=GEMMA3_ROPE, layer_types=GEMMA3_LAYERS),
        {
            "attention.sliding_window": 5,
            "attention.sliding_window_pattern": 2,
            "rope.freq_base": 1_000_000.0,
            "rope.scaling.type": "linear",
            "rope.scaling.factor": 8.0,
        },
    ),
}
FLOAT_TYPES = [gguf.GGMLQuantizationType.F32, gguf.GGMLQuantizationType.F16]


def spec_of(case: str, model: torch.nn.Module) -> GgufSpec:
    """What llama.cpp would write for the model of a case."""
    architecture, config, fields = CASES[case]
    state = {name: value.float().numpy() for name, value in model.state_dict().items()}
    if config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    extra = {"rope_freqs.weight": llama3_rope_factors(10000.0, 16, 8.0)} if case == "llama3" else {}
    return GgufSpec(architecture, _shape_fields() | fields, state, extra=extra)


def _shape_fields() -> dict[str, Any]:
    return {
        "context_length": 128,
        "embedding_length": 64,
        "feed_forward_length": 96,
        "block_count": NUM_LAYERS,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
        "attention.key_length": 16,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
    }


def random_model(case: str) -> torch.nn.Module:
    """The model of a case with random weights, norms and biases included, all exact in float16."""
    torch.manual_seed(0)
    model: torch.nn.Module = transformers.AutoModelForCausalLM.from_config(CASES[case][1]).float().eval()
    with torch.no_grad():
        for value in model.parameters():
            value.copy_((torch.randn_like(value) * 0.2 * 64).round() / 64)
    return model


@pytest.mark.parametrize("stored", FLOAT_TYPES, ids=lambda each: each.name)
@pytest.mark.parametrize("case", CASES)
def test_converted_model_computes_the_same(case: str, stored: gguf.GGMLQuantizationType, tmp_path: Path) -> None:
    """The converted directory, loaded by transformers, gives the logits of the model that the GGUF was made from."""
    model = random_model(case)
    spec = spec_of(case, model)
    spec.quantization = stored
    write_gguf(tmp_path / "model.gguf", spec)
    (tmp_path / "out").mkdir()
    convert(tmp_path / "model.gguf", tmp_path / "out")
    again, loading = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "out", dtype=torch.float32, output_loading_info=True
    )
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    token_ids = torch.arange(20)[None] * 7
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(token_ids).logits, model(token_ids).logits)


def test_q4_1_becomes_the_exact_values_it_stands_for(tmp_path: Path) -> None:
    """A Q4_1 block is scale * nibble + minimum, with the scale and minimum of the file, in float32."""
    spec = spec_of("llama", random_model("llama"))
    spec.quantization = gguf.GGMLQuantizationType.Q4_1
    write_gguf(tmp_path / "model.gguf", spec)
    file = GgufFile(tmp_path / "model.gguf")
    raw = gguf.quants.quantize(spec.tensors["model.layers.1.mlp.gate_proj.weight"], gguf.GGMLQuantizationType.Q4_1)
    blocks = raw.reshape(-1, 20)
    scale, minimum = (blocks[:, at : at + 2].copy().view(np.float16).astype(np.float32) for at in (0, 2))
    nibbles = np.concatenate([blocks[:, 4:] & 15, blocks[:, 4:] >> 4], axis=1).astype(np.float32)
    expected = (scale * nibbles + minimum).reshape(96, 64)
    write_weights(file, tmp_path)
    found = SafetensorsSource(tmp_path).take("model.layers.1.mlp.gate_proj.weight")
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy(), expected)


def test_q8_0_stays_within_half_a_step(tmp_path: Path) -> None:
    """Q8_0 weights come back within half a step (and the float16 rounding of the scale), q and k rows in place."""
    spec = spec_of("llama", random_model("llama"))
    spec.quantization = gguf.GGMLQuantizationType.Q8_0
    write_gguf(tmp_path / "model.gguf", spec)
    write_weights(GgufFile(tmp_path / "model.gguf"), tmp_path)
    source = SafetensorsSource(tmp_path)
    for name, values in spec.tensors.items():
        step = np.abs(values).max() / 127
        np.testing.assert_allclose(source.take(name).numpy(), values, atol=step * 0.57)


def test_large_models_are_sharded(tmp_path: Path) -> None:
    """Beyond the shard size the weights are split over files with an index, and read back whole."""
    spec = spec_of("qwen2", random_model("qwen2"))
    write_gguf(tmp_path / "model.gguf", spec)
    write_weights(GgufFile(tmp_path / "model.gguf"), tmp_path, max_shard_bytes=100_000)
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 1
    source = SafetensorsSource(tmp_path)
    assert source.names() == set(spec.tensors)
    for name, values in spec.tensors.items():
        np.testing.assert_array_equal(source.take(name).numpy(), values)


def test_generation_ends_at_every_turn_end(tmp_path: Path) -> None:
    """`eos_token_id` holds the file's eos and every control token that ends a turn or a text."""
    write_gguf(tmp_path / "model.gguf", spec_of("llama", random_model("llama")))
    (tmp_path / "out").mkdir()
    convert(tmp_path / "model.gguf", tmp_path / "out")
    assert set(read_config(tmp_path / "out")["eos_token_id"]) == {0, 2}


def test_unknown_architecture_is_refused(tmp_path: Path) -> None:
    """An architecture that kvferry does not know is named, with those it does."""
    spec = spec_of("llama", random_model("llama"))
    spec.architecture, spec.tensors = "mamba", {}
    write_gguf(tmp_path / "model.gguf", spec)
    with pytest.raises(ModelLoadError, match=r"model\.gguf: architecture 'mamba' is not supported.*qwen3"):
        convert(tmp_path / "model.gguf", tmp_path)


def test_foreign_tensor_is_refused(tmp_path: Path) -> None:
    """A tensor that the architecture has no place for is an error, not dropped."""
    spec = spec_of("llama", random_model("llama"))
    spec.extra["blk.0.ffn_gate_inp.weight"] = np.zeros((4, 64), np.float32)
    write_gguf(tmp_path / "model.gguf", spec)
    with pytest.raises(ModelLoadError, match=r"ffn_gate_inp\.weight has no place"):
        convert(tmp_path / "model.gguf", tmp_path)


def test_unknown_rope_factors_are_refused(tmp_path: Path) -> None:
    """Rope factors that no known scaling explains are an error, not ignored."""
    spec = spec_of("llama", random_model("llama"))
    spec.extra["rope_freqs.weight"] = np.linspace(1, 3, 8, dtype=np.float32)
    write_gguf(tmp_path / "model.gguf", spec)
    with pytest.raises(ModelLoadError, match=r"rope_freqs\.weight are not those of Llama 3"):
        convert(tmp_path / "model.gguf", tmp_path)


@pytest.mark.parametrize("kept", [0, 3, 20, 500, 0.5, 0.98])
def test_truncated_gguf_names_the_file(kept: float, tmp_path: Path) -> None:
    """A GGUF file cut anywhere is a ModelLoadError with its name."""
    path = tmp_path / "model.gguf"
    write_gguf(path, spec_of("llama", random_model("llama")))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(kept if kept > 1 else kept * len(whole))])
    with pytest.raises(ModelLoadError, match=r"model\.gguf is not a whole GGUF file"):
        convert(path, tmp_path)


def test_missing_metadata_is_named(tmp_path: Path) -> None:
    """A field that the architecture needs and the file lacks is named."""
    spec = spec_of("llama", random_model("llama"))
    del spec.fields["feed_forward_length"]
    write_gguf(tmp_path / "model.gguf", spec)
    with pytest.raises(ModelLoadError, match=r"no llama\.feed_forward_length"):
        convert(tmp_path / "model.gguf", tmp_path)
