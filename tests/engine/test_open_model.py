"""A model directory as transformers writes it, opened and run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from safetensors.torch import save_file

from engine.build import EngineConfig, build_engine
from engine.model_config import ModelConfig
from engine.open_model import open_model
from protocol.errors import ModelLoadError
from tests.support.generate import greedy_tokens
from tests.support.tiny_model import tiny_engine, tiny_hf_config, tiny_weights


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A tiny llama on disk whose generation_config.json names another end token."""
    raw = tiny_hf_config()
    source = tiny_weights(ModelConfig.from_hf(raw))
    (tmp_path / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [9, 2]}), encoding="utf-8")
    save_file({name: source.take(name) for name in source.names()}, tmp_path / "model.safetensors")
    return tmp_path


def test_a_directory_runs_as_the_model_in_memory(directory: Path) -> None:
    """Text and fingerprint are those of the same weights handed over in memory."""
    config, source = open_model(directory)
    engine = build_engine(EngineConfig(num_blocks=8, attention="reference"), config, source)
    assert greedy_tokens(engine, [5, 6, 7], 10, [1]) == greedy_tokens(tiny_engine(), [5, 6, 7], 10, [1])
    assert engine.layout.model_fingerprint == tiny_engine().layout.model_fingerprint


def test_end_tokens_of_both_files_count(directory: Path) -> None:
    """config.json's end tokens come first, then what generation_config.json adds; without that file they stand alone."""
    assert open_model(directory)[0].eos_token_ids == (2, 9)
    (directory / "generation_config.json").unlink()
    assert open_model(directory)[0].eos_token_ids == (2,)


def test_malformed_end_tokens_are_named(directory: Path) -> None:
    """An end token that is no number is an error that names the file."""
    (directory / "generation_config.json").write_text('{"eos_token_id": "</s>"}', encoding="utf-8")
    with pytest.raises(ModelLoadError, match=r"generation_config\.json: eos_token_id"):
        open_model(directory)
