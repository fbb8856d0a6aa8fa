"""Reading a model directory's JSON files, with errors that name the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from protocol.errors import ModelLoadError


def read_config(directory: Path) -> dict[str, Any]:
    """The model's `config.json`. Raises `ModelLoadError` when it is missing, no JSON object or without `model_type`."""
    config = read_json(directory / "config.json")
    if not isinstance(config.get("model_type"), str):
        raise ModelLoadError(f"{directory / 'config.json'} names no model_type")
    return config


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise ModelLoadError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path} holds no JSON object")
    return content
