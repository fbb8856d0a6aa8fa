"""One call of a tool, and how it is read from the JSON object that a model wrote."""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from router.front.tools.form import OfferedTools

NUM_ID_CHARS = 24
_ID_ALPHABET = string.ascii_letters + string.digits
_SPACE = re.compile(r"[ \t\r\n]*")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """Call number `index` of an answer. `arguments` is a JSON object, letter by letter as the model wrote it."""

    index: int
    id: str
    name: str
    arguments: str


def read_call(text: str, offered: OfferedTools, index: int) -> ToolCall | None:
    """The call that the JSON object `text` is, with a new id; None when it is none of an offered function."""
    try:
        members = {key: (value, raw) for key, value, raw in _members(text)}
    except (ValueError, RecursionError):
        return None
    name = members.get("name", (None, ""))[0]
    key = next((key for key in offered.form.argument_keys if key in members), None)
    if not isinstance(name, str) or name not in offered.names or key is None:
        return None
    arguments, raw = members[key]
    return ToolCall(index, _new_id(), name, raw) if isinstance(arguments, dict) else None


def _new_id() -> str:
    return "call_" + "".join(secrets.choice(_ID_ALPHABET) for _ in range(NUM_ID_CHARS))


def _members(text: str) -> Iterator[tuple[str, Any, str]]:
    """Key, value and the value's own text, of a JSON object that is all of `text`. Raises `ValueError` for anything else."""
    at = _after(text, "{", 0)
    if text[at : at + 1] == "}":
        _end(text, at)
        return
    while True:
        key, end = _DECODER.raw_decode(text, at)
        if not isinstance(key, str):
            raise ValueError("a key must be a string")
        at = _after(text, ":", _SPACE.match(text, end).end())  # type: ignore[union-attr]  # matches anywhere
        value, end = _DECODER.raw_decode(text, at)
        yield key, value, text[at:end]
        at = _SPACE.match(text, end).end()  # type: ignore[union-attr]
        if text[at : at + 1] != ",":
            _end(text, at)
            return
        at = _after(text, ",", at)


def _after(text: str, char: str, at: int) -> int:
    """Where the text goes on after `char` and white space."""
    if text[at : at + 1] != char:
        raise ValueError(f"{char} expected")
    return _SPACE.match(text, at + 1).end()  # type: ignore[union-attr]


def _end(text: str, at: int) -> None:
    if text[at:] != "}":
        raise ValueError("the object must end here")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)
