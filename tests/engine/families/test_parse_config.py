"""config.json to ModelConfig: both spellings of transformers, defaults, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import transformers

from engine.families import FAMILIES, canonical_name, expected_tensors, family_of
from engine.model_config import LayerSpec, ModelConfig, RopeScaling, RopeSpec
from protocol.errors import ModelLoadError
from tests.support.tiny_model import TINY_FAMILIES, tiny_hf_config


@pytest.mark.parametrize("family", TINY_FAMILIES)
def test_both_spellings_mean_the_same(family: str) -> None:
    """What transformers 5 writes for a config of transformers 4 is read as the same model."""
    old = tiny_hf_config(family)
    new = getattr(transformers, FAMILIES[family].architectures[0]).config_class.from_dict(copy.deepcopy(old)).to_dict()
    assert "rope_parameters" in new
    assert "rope_theta" not in new
    assert ModelConfig.from_hf({**new, "architectures": None}).identity() == ModelConfig.from_hf(old).identity()


def test_gemma3_has_two_kinds_of_layers() -> None:
    """Every third layer of the tiny Gemma 3 sees everything and has a scaled base; the others slide, with the local one."""
    local = LayerSpec(RopeSpec(10_000.0), window=7)
    everything = LayerSpec(RopeSpec(1_000_000.0, RopeScaling.LINEAR, 4.0))
    assert ModelConfig.from_hf(tiny_hf_config("gemma3")).layers == (local, local, everything, local)


def test_text_part_of_a_multimodal_gemma3_is_read() -> None:
    """The sparse text_config of a published multimodal Gemma 3 is completed by the family's defaults."""
    raw = {
        "architectures": ["Gemma3ForConditionalGeneration"],
        "model_type": "gemma3",
        "eos_token_id": [1, 106],
        "torch_dtype": "bfloat16",
        "text_config": {
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "model_type": "gemma3_text",
            "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
            "sliding_window": 1024,
        },
        "vision_config": {"model_type": "siglip_vision_model"},
    }
    config = ModelConfig.from_hf(raw)
    assert (config.num_heads, config.num_kv_heads, config.head_dim, config.vocab_size) == (8, 4, 256, 262208)
    assert config.eos_token_ids == (1, 106)
    assert config.dtype == "bfloat16"
    assert config.is_tied
    assert config.layers[4] == LayerSpec(RopeSpec(10_000.0), 1024)
    assert config.layers[5] == LayerSpec(RopeSpec(1_000_000.0, RopeScaling.LINEAR, 8.0))
    assert expected_tensors(config)["model.layers.33.self_attn.q_norm.weight"] == (256,)


def test_multimodal_names_become_those_of_the_text_model() -> None:
    """Both prefixes of multimodal checkpoints are taken off; other tensors keep their names."""
    name = "model.layers.0.mlp.up_proj.weight"
    assert canonical_name(f"language_model.{name}") == name
    assert canonical_name(f"model.language_model.{name.removeprefix('model.')}") == name
    assert canonical_name("language_model.lm_head.weight") == "lm_head.weight"
    assert canonical_name("vision_tower.x.weight") == "vision_tower.x.weight"
    assert canonical_name(name) == name


def test_llama3_rope_is_read() -> None:
    """Llama 3.1's published rope scaling arrives number by number."""
    scaling = {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
        "rope_type": "llama3",
    }
    config = ModelConfig.from_hf(tiny_hf_config(rope_scaling=scaling, rope_theta=500000.0))
    assert config.layers[0].rope == RopeSpec(500000.0, RopeScaling.LLAMA3, 8.0, 1.0, 4.0, 8192)


def test_an_absent_window_is_the_default_and_a_null_one_is_none() -> None:
    """Mistral slides over 4096 tokens unless config.json says otherwise; null switches the window off."""
    raw = tiny_hf_config("mistral")
    assert ModelConfig.from_hf({**raw, "sliding_window": None}).layers[0].window is None
    del raw["sliding_window"]
    assert ModelConfig.from_hf(raw).layers[0].window == 4096


@pytest.mark.parametrize(("value", "expected"), [(7, (7,)), ([7, 9], (7, 9)), (None, ())])
def test_end_tokens_may_be_one_several_or_none(value: object, expected: tuple[int, ...]) -> None:
    """`eos_token_id` is read as a tuple."""
    assert ModelConfig.from_hf(tiny_hf_config(eos_token_id=value)).eos_token_ids == expected


def test_model_type_stands_in_for_missing_architectures() -> None:
    """A config.json without `architectures` is known by its `model_type`."""
    raw = {**tiny_hf_config("qwen3"), "architectures": None}
    assert family_of(raw).name == "qwen3"


@pytest.mark.parametrize(
    ("overrides", "says"),
    [
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM is not supported; supported: LlamaForCausalLM, "),
        ({"architectures": None, "model_type": "mamba"}, "model_type 'mamba' is not supported; supported: Llama"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2}},
            "'yarn' is not supported; supported: default, linear, llama3",
        ),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 2}}, "llama3 needs 'low_freq_factor'"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "x"}}, "must be numbers"),
        ({"rope_scaling": "linear"}, "rope_scaling must be an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"hidden_act": "relu"}, "'relu' is not supported, only silu"),
        ({"quantization_config": {"quant_method": "fp8"}}, "quantization_config is not supported"),
        ({"hidden_size": None}, "hidden_size is missing"),
        ({"vocab_size": "many"}, "vocab_size must be an integer, got 'many'"),
        ({"num_hidden_layers": True}, "num_hidden_layers must be an integer"),
        ({"num_hidden_layers": 0}, "at least one layer"),
        ({"num_key_value_heads": 3}, "4 heads cannot share 3 kv heads"),
        ({"num_attention_heads": 0}, "num_heads must be at least 1"),
        ({"num_key_value_heads": 0}, "num_kv_heads must be at least 1"),
        ({"head_dim": 7}, "even head_dim, got 7"),
        ({"tie_word_embeddings": "yes"}, "tie_word_embeddings must be true or false"),
        ({"rms_norm_eps": "small"}, "rms_norm_eps must be a number"),
        ({"eos_token_id": "</s>"}, "eos_token_id must be"),
    ],
)
def test_what_cannot_be_served_is_named(overrides: dict[str, Any], says: str) -> None:
    """An unknown architecture or rope, and a missing or malformed field, is an error that names it."""
    with pytest.raises(ModelLoadError) as caught:
        ModelConfig.from_hf(tiny_hf_config(**overrides))
    assert says in str(caught.value)


def test_layer_types_must_fit_the_layers() -> None:
    """`layer_types` of the wrong length or with an unknown kind is refused; a right one wins over the pattern."""
    kinds = ["full_attention", "sliding_attention", "sliding_attention", "full_attention"]
    windows = [layer.window for layer in ModelConfig.from_hf(tiny_hf_config("gemma3", layer_types=kinds)).layers]
    assert windows == [None, 7, 7, None]
    for wrong in (kinds[:3], ["linear_attention"] * 4):
        with pytest.raises(ModelLoadError, match="layer_types"):
            ModelConfig.from_hf(tiny_hf_config("gemma3", layer_types=wrong))


def test_bidirectional_gemma3_is_refused() -> None:
    """An embedding model that looks ahead is not a causal decoder."""
    with pytest.raises(ModelLoadError, match="use_bidirectional_attention"):
        ModelConfig.from_hf(tiny_hf_config("gemma3", use_bidirectional_attention=True))
