"""A model's name to a Hugging Face style directory on this machine. Reads no tensor and imports no torch."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from engine.checkpoint.config_file import read_config
from engine.checkpoint.convert import convert_cached
from engine.checkpoint.demo_model import ALIAS, demo_model
from engine.checkpoint.hub import fetch_from_hub
from protocol.errors import ModelLoadError

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


@dataclass(frozen=True, slots=True)
class ModelDirectory:
    """A model on disk: `config.json`, tokenizer files and safetensors under `path`; `name` is how it was asked for."""

    path: Path
    name: str


def resolve_model(name: str, progress: Callable[[str], None] | None = None) -> ModelDirectory:
    """Finds a model, fetching or converting it when that has not been done yet.

    `name` is an alias, a directory, a GGUF file or a Hub id, tried in this order. `progress` is told, in whole
    sentences, what takes long. Safe to call from several processes at once. Raises `ModelLoadError` that says what
    to do.
    """
    tell = progress or _say_nothing
    if name == ALIAS:
        return ModelDirectory(demo_model(tell), name)
    path = Path(name).expanduser()
    if name and path.is_dir():
        _check_directory(path)
        return ModelDirectory(path.resolve(), name)
    if path.is_file() and path.suffix.lower() == ".gguf":
        return ModelDirectory(convert_cached(path, tell), name)
    if _HUB_ID.fullmatch(name) and path.suffix.lower() != ".gguf" and not path.exists():
        return ModelDirectory(fetch_from_hub(name, tell), name)
    raise ModelLoadError(
        f"no model {name!r}: give the alias {ALIAS}, an existing directory with config.json and *.safetensors, "
        "an existing .gguf file, or a Hub id such as org/name"
    )


def _say_nothing(sentence: str) -> None:
    """What is done with progress that nobody asked for."""


def _check_directory(path: Path) -> None:
    read_config(path)
    if not any(path.glob("*.safetensors")):
        raise ModelLoadError(f"{path} has no *.safetensors file; kvferry reads no other format of weights")
