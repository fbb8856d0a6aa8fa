"""The text that the probe judges codecs by, and how text becomes what a model reads. Knows tokenizers, and no model."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files

from protocol.errors import ConfigError
from router.tokenization.tokenizer import Tokenizer


@cache
def probe_text() -> str:
    """Plain English prose with a little code, about 16 kB. It never changes: verdicts are compared by it."""
    return files("quality").joinpath("text.txt").read_text(encoding="utf-8")


@cache
def text_digest() -> str:
    """16 hexadecimal digits that tell the text apart from any other."""
    return hashlib.sha256(probe_text().encode()).hexdigest()[:16]


def starting_tokens(tokenizer: Tokenizer) -> tuple[int, ...]:
    """What the tokenizer puts before every text: the model's own start mark, or nothing."""
    marked, plain = tokenizer.encode("a"), tokenizer.encode("a", add_special_tokens=False)
    places = range(len(marked) - len(plain) + 1)
    return tuple(marked[: next((place for place in places if marked[place : place + len(plain)] == plain), 0)])


def text_windows(tokenizer: Tokenizer, num_windows: int, num_tokens: int) -> list[list[int]]:
    """Windows of `num_tokens` tokens, one after the other from the beginning of the text, each begun as the model's texts are.

    Raises `ConfigError` when the text has not so many.
    """
    start = starting_tokens(tokenizer)
    tokens = tokenizer.encode(probe_text(), add_special_tokens=False)
    num_new = num_tokens - len(start)
    if num_windows * num_new > len(tokens):
        raise ConfigError(
            f"the probe's text has {len(tokens)} tokens, which are {len(tokens) // num_new} windows of {num_tokens}: "
            f"{num_windows} cannot be taken from it",
            param="windows",
        )
    return [[*start, *tokens[number * num_new : (number + 1) * num_new]] for number in range(num_windows)]
