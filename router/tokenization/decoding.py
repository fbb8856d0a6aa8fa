"""The decoder of a `tokenizer.json` as a stream: tokens in one by one, text out as soon as nothing can change it.

A decoder of the `tokenizers` library is a function of all tokens. Here each of its steps is a stage that holds back
what later tokens may still change, so that the texts given add up to what the library gives for all tokens, at a cost
per token that does not grow. Steps that cannot be streamed, or are not known, are refused when the tokenizer is loaded.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from protocol.errors import ModelLoadError

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class Stage(Protocol):
    """One step of a decoder. What it holds back comes out of a later `push` or of `finish`.

    It `is_at_rest` while what it makes of a unit does not depend on the units before, of which none is held back.
    """

    @property
    def is_at_rest(self) -> bool:
        """Whether it is now."""
        ...

    def push(self, unit: str) -> list[str]:
        """Units that are now certain, after `unit`."""
        ...

    def finish(self) -> list[str]:
        """What is left when nothing follows."""
        ...


@dataclass(frozen=True, slots=True)
class Decoding:
    """A decoder that can be streamed: how to make its stages, and the bytes that a single token stands for.

    `texts` are those that tokens were found to have wherever all stages are at rest before and after them, by id. Any
    thread may add to them: they depend on nothing else.
    """

    makers: tuple[Callable[[], Stage], ...]
    is_byte_level: bool
    has_byte_tokens: bool
    replacements: tuple[tuple[str, str], ...]
    texts: dict[int, str] = field(default_factory=dict, compare=False, repr=False)

    def stages(self, is_mid_text: bool) -> list[Stage]:
        """The decoder's steps for one text, or for the part of one that other tokens came before (`is_mid_text`)."""
        stages = [make() for make in self.makers]
        for stage in stages:
            if is_mid_text and isinstance(stage, _Metaspace | _Strip):
                stage.leave_start()
        return stages

    def token_bytes(self, token: str) -> bytes:
        """The bytes of one token in the middle of a text."""
        if self.is_byte_level:
            return byte_level_bytes(token)
        if self.has_byte_tokens and (match := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        for pattern, content in self.replacements:
            token = token.replace(pattern, content)
        return token.encode()

    @classmethod
    def parse(cls, decoder: Mapping[str, Any] | None) -> Decoding:
        """Reads the `decoder` of a tokenizer.json. Raises `ModelLoadError` naming a step that cannot be streamed."""
        steps = _steps(decoder)
        kinds = [step.get("type") for step in steps]
        if "ByteLevel" in kinds and len(steps) > 1:
            raise ModelLoadError(f"a ByteLevel decoder among other steps is not supported: {kinds}")
        makers: list[Callable[[], Stage]] = []
        is_fused = False
        for step in steps:
            if is_fused and step["type"] != "Strip":
                raise ModelLoadError(f"decoder step {step['type']} after Fuse is not supported")
            is_fused = is_fused or step["type"] == "Fuse"
            if step["type"] != "Fuse":
                makers.append(_maker(step, is_fused))
        replacements = tuple(pair for step in steps if (pair := _replacement(step)) is not None)
        return cls(tuple(makers), "ByteLevel" in kinds, "ByteFallback" in kinds, replacements)


def byte_level_bytes(token: str) -> bytes:
    """The bytes of a token spelt in the byte-level alphabet; a token with any other character is spelt as itself."""
    try:
        return bytes(_BYTES[char] for char in token)
    except KeyError:
        return token.encode()


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's spelling of bytes: printable ones by themselves, the others, in order, by the characters from 256 on."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [value for value in range(256) if value not in printable]
    return {chr(value): value for value in printable} | {chr(256 + at): value for at, value in enumerate(others)}


_BYTES = _byte_alphabet()


class _ByteLevel:
    """Bytes of tokens to UTF-8 text, an incomplete character held back, malformed bytes as U+FFFD."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    @property
    def is_at_rest(self) -> bool:
        return not self._decoder.getstate()[0]

    def push(self, unit: str) -> list[str]:
        return [self._decoder.decode(byte_level_bytes(unit))]

    def finish(self) -> list[str]:
        return [self._decoder.decode(b"", final=True)]


class _ByteFallback:
    """Runs of byte tokens to text, held to their end: one malformed byte turns the whole run into U+FFFD."""

    def __init__(self) -> None:
        self._run = bytearray()

    @property
    def is_at_rest(self) -> bool:
        return not self._run

    def push(self, unit: str) -> list[str]:
        if match := _BYTE_TOKEN.fullmatch(unit):
            self._run.append(int(match[1], 16))
            return []
        return [*self.finish(), unit]

    def finish(self) -> list[str]:
        run, self._run = self._run, bytearray()
        try:
            return [run.decode()] if run else []
        except UnicodeDecodeError:
            return ["\ufffd"] * len(run)


class _Replace:
    """Replaces a text within each token."""

    def __init__(self, pattern: str, content: str) -> None:
        self._pattern = pattern
        self._content = content

    @property
    def is_at_rest(self) -> bool:
        return True

    def push(self, unit: str) -> list[str]:
        return [unit.replace(self._pattern, self._content)]

    def finish(self) -> list[str]:
        return []


class _Metaspace:
    """Word breaks to spaces; the first token loses its own when the encoder put it there."""

    def __init__(self, word_break: str, is_prepended: bool) -> None:
        self._word_break = word_break
        self._drops_next = is_prepended

    def leave_start(self) -> None:
        self._drops_next = False

    @property
    def is_at_rest(self) -> bool:
        return not self._drops_next

    def push(self, unit: str) -> list[str]:
        space = "" if self._drops_next else " "
        self._drops_next = False
        return [unit.replace(self._word_break, space)]

    def finish(self) -> list[str]:
        return []


class _Strip:
    """Takes up to `count` times `content` from the start: of the text when fused before, else of each token."""

    def __init__(self, content: str, count: int, is_fused: bool) -> None:
        self._content = content
        self._count = count
        self._left = count
        self._is_fused = is_fused

    def leave_start(self) -> None:
        self._left = 0

    @property
    def is_at_rest(self) -> bool:
        return not self._is_fused or not self._left

    def push(self, unit: str) -> list[str]:
        if not self._is_fused:
            self._left = self._count
        while self._left and unit.startswith(self._content):
            unit = unit[len(self._content) :]
            self._left -= 1
        if unit:
            self._left = 0
        return [unit]

    def finish(self) -> list[str]:
        return []


def _steps(decoder: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    if decoder is None:
        raise ModelLoadError("the tokenizer has no decoder")
    if decoder.get("type") != "Sequence":
        return [decoder]
    return [step for part in decoder["decoders"] for step in _steps(part)]


def _maker(step: Mapping[str, Any], is_fused: bool) -> Callable[[], Stage]:
    kind = step["type"]
    if kind == "ByteLevel":
        return _ByteLevel
    if kind == "ByteFallback":
        return _ByteFallback
    if kind == "Strip" and step["stop"] == 0:
        return lambda: _Strip(step["content"], step["start"], is_fused)
    if kind == "Metaspace":
        is_prepended = step.get("prepend_scheme", "always") != "never"
        return lambda: _Metaspace(step["replacement"], is_prepended)
    if (pair := _replacement(step)) is not None:
        return lambda: _Replace(*pair)
    raise ModelLoadError(f"decoder step {dict(step)} is not supported: its text cannot be streamed")


def _replacement(step: Mapping[str, Any]) -> tuple[str, str] | None:
    """What a step replaces within a token: pattern and content."""
    if step["type"] == "Metaspace":
        return step["replacement"], " "
    if step["type"] == "Replace" and "String" in step["pattern"]:
        return step["pattern"]["String"], step["content"]
    return None
