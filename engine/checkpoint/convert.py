"""A GGUF file to a Hugging Face style directory, in the cache of converted models."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

from engine.checkpoint.cache import cached_directory
from engine.checkpoint.gguf_config import generation_config, model_config
from engine.checkpoint.gguf_file import GgufFile
from engine.checkpoint.gguf_tokenizer import write_tokenizer
from engine.checkpoint.gguf_weights import write_weights
from protocol.errors import ModelLoadError

CONVERTER_VERSION = 1
"""Part of every cache key: raised when a conversion comes out differently, so that no old one is used."""

Progress = Callable[[str], None]


def convert_cached(path: Path, progress: Progress) -> Path:
    """The converted directory of a GGUF file, made now or earlier. The key is the SHA-256 of the whole file."""
    progress(f"Reading {path.name}.")
    digest = sha256(path)

    def fill(directory: Path) -> None:
        progress(f"Converting {path.name} to float32 safetensors, once.")
        convert(path, directory)

    return cached_directory(f"gguf-{digest[:32]}-v{CONVERTER_VERSION}", fill)


def convert(path: Path, directory: Path) -> None:
    """Writes configuration, tokenizer and float32 weights of the GGUF file `path` into the empty `directory`.

    Raises `ModelLoadError` naming the file and what in it is broken or not supported.
    """
    file = GgufFile(path)
    _write_json(directory / "config.json", model_config(file))
    _write_json(directory / "generation_config.json", generation_config(file))
    write_tokenizer(file, directory)
    write_weights(file, directory)


def sha256(path: Path) -> str:
    """SHA-256 of a file, as hexadecimal digits. Raises `ModelLoadError` when it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from error


def _write_json(path: Path, content: dict[str, object]) -> None:
    path.write_text(json.dumps(content, indent=1), encoding="utf-8")
