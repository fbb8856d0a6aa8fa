"""The prompt as the beginning of its answer. Knows nothing of answers, and nothing of log-probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from router.tokenization.detokenizer import Detokenizer
from router.tokenization.tokenizer import Tokenizer


class Echo(NamedTuple):
    """A prompt's text; `offsets` tell where in it each of the prompt's tokens begins, in characters."""

    text: str
    offsets: tuple[int, ...]


def echo_of_text(tokenizer: Tokenizer, text: str) -> Echo:
    """Of a prompt that came as text: that text, whatever the tokenizer made of it."""
    return Echo(text, tuple(tokenizer.encode_offsets(text)))


def echo_of_ids(tokenizer: Tokenizer, token_ids: Sequence[int]) -> Echo:
    """Of a prompt that came as ids: their decoding, special tokens spelt out, an incomplete character as U+FFFD."""
    detokenizer = Detokenizer(tokenizer, skip_special_tokens=False)
    pieces: list[str] = []
    offsets = []
    num_chars = 0
    for token_id in token_ids:
        offsets.append(num_chars)
        pieces.append(detokenizer.push(token_id))
        num_chars += len(pieces[-1])
    return Echo("".join([*pieces, detokenizer.finish()]), tuple(offsets))
