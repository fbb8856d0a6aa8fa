"""The small JSON files of a model directory that concern text: special tokens, what ends a text, chat templates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from protocol.errors import ModelLoadError

DEFAULT_TEMPLATE = "default"
TOOL_TEMPLATE = "tool_use"


def read_optional_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file, empty when there is no such file. Raises `ModelLoadError` for a malformed one."""
    if not path.exists():
        return {}
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from error
    if not isinstance(content, dict):
        raise ModelLoadError(f"{path} holds no JSON object")
    return content


def special_tokens(tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """`bos_token`, `eos_token` and their like, whether written as text or as an object with `content`."""
    found = {}
    for name, value in tokenizer_config.items():
        text = value.get("content") if isinstance(value, Mapping) else value
        if name.endswith("_token") and isinstance(text, str):
            found[name] = text
    return found


def stated_eos_ids(directory: Path) -> set[int]:
    """Ids that end a text by `generation_config.json` and `config.json`."""
    ids: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        stated = read_optional_json(directory / name).get("eos_token_id")
        listed = stated if isinstance(stated, list) else [] if stated is None else [stated]
        if not all(isinstance(each, int) and not isinstance(each, bool) for each in listed):
            raise ModelLoadError(f"{directory / name}: eos_token_id is {stated!r}, neither an id nor a list of ids")
        ids.update(listed)
    return ids


def template_sources(directory: Path, tokenizer_config: Mapping[str, Any]) -> dict[str, str]:
    """Chat templates by name: of `chat_template.jinja` if there is one, else of `tokenizer_config.json`."""
    path = directory / "chat_template.jinja"
    stated = tokenizer_config.get("chat_template")
    try:
        if path.exists():
            return {DEFAULT_TEMPLATE: path.read_text(encoding="utf-8")}
        if isinstance(stated, list):
            return {each["name"]: each["template"] for each in stated}
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from error
    except (KeyError, TypeError) as error:
        raise ModelLoadError(f"{directory / 'tokenizer_config.json'}: chat_template is malformed: {error!r}") from error
    return {DEFAULT_TEMPLATE: stated} if isinstance(stated, str) else {}
