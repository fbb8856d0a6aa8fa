"""The text that codecs are judged on, as windows of tokens. Knows no model but its tokenizer."""

from __future__ import annotations

from pathlib import Path

from benchmarks.machine import ROOT
from protocol.errors import ConfigError
from quality.text import starting_tokens
from router.tokenization.tokenizer import Tokenizer

OWN_DOCUMENTS = ("docs/adr/*.md", "ARCHITECTURE.md", "docs/security.md", "docs/two-hosts.md", "README.md")
"""Decisions come first: windows are cut from the beginning, and those documents change least."""


def own_text() -> str:
    """kvferry's own documents one after the other, about 12,000 tokens: English prose with some code and a few tables.

    `docs/wire.md` is not among them: it holds the results. Raises `ConfigError` outside of a checkout.
    """
    paths = [path for pattern in OWN_DOCUMENTS for path in sorted(ROOT.glob(pattern))]
    if not paths:
        raise ConfigError("kvferry's documents are not beside its code: name a text file with --text", param="text")
    return "\n\n".join(path.read_text(encoding="utf-8") for path in paths)


def read_text(path: Path | None) -> str:
    """A file's text, or kvferry's own."""
    return own_text() if path is None else path.read_text(encoding="utf-8")


def token_windows(text: str, tokenizer: Tokenizer, num_windows: int, num_tokens: int) -> list[list[int]]:
    """The first `num_windows` windows of `num_tokens` tokens, one after the other, each begun as the model's texts are.

    Raises `ConfigError` when the text is too short.
    """
    start = starting_tokens(tokenizer)
    tokens = tokenizer.encode(text, add_special_tokens=False)
    num_new = num_tokens - len(start)
    needed = num_windows * num_new
    if len(tokens) < needed:
        raise ConfigError(
            f"the text has {len(tokens)} tokens and {num_windows} windows of {num_new} need {needed}: give a longer "
            "one or ask for fewer windows",
            param="text",
        )
    return [[*start, *tokens[first : first + num_new]] for first in range(0, needed, num_new)]
