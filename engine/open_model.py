"""From a model directory to what `build_engine` takes: the one place where the engine meets checkpoints on disk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from engine.checkpoint.config_file import read_config, read_json
from engine.checkpoint.safetensors_source import SafetensorsSource
from engine.model_config import ModelConfig
from protocol.errors import ModelLoadError


def open_model(directory: Path) -> tuple[ModelConfig, SafetensorsSource]:
    """The configuration and the tensors, none of which is read yet, of a Hugging Face style directory.

    A token ends a generation if config.json or generation_config.json says so: chat models often name their end of turn
    in the latter only. Raises `ModelLoadError` naming the file and what is wrong with it.
    """
    config = ModelConfig.from_hf(read_config(directory))
    path = directory / "generation_config.json"
    if path.exists():
        config = replace(config, eos_token_ids=_united(config.eos_token_ids, read_json(path).get("eos_token_id"), path))
    return config, SafetensorsSource(directory)


def _united(known: tuple[int, ...], more: object, path: Path) -> tuple[int, ...]:
    found = more if isinstance(more, list) else [] if more is None else [more]
    if not all(isinstance(token, int) for token in found):
        raise ModelLoadError(f"{path}: eos_token_id must be an integer or a list of integers, got {more!r}")
    return tuple(dict.fromkeys((*known, *found)))
