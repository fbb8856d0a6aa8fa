"""Single tokens as OpenAI's log-probabilities show them: a text and its bytes. Knows nothing of their neighbours."""

from __future__ import annotations

import math

from protocol.errors import KvferryError
from protocol.request import GeneratedToken, TokenLogprobs
from router.tokenization.tokenizer import Tokenizer

LEAST_LOGPROB = -9999.0
"""Stands for minus infinity, which JSON cannot say."""


def printable_token(raw: bytes) -> str:
    """A token's text; `bytes:` and hexadecimal escapes where it is no UTF-8 text, so that different tokens differ."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def finite_logprob(value: float) -> float:
    """The value, or the least that is told."""
    return max(value, LEAST_LOGPROB) if math.isfinite(value) else LEAST_LOGPROB


def logprobs_of(token: GeneratedToken) -> TokenLogprobs:
    """The log-probabilities that were asked for. Raises `KvferryError` when the worker did not send them."""
    if token.logprobs is None:
        raise KvferryError("the worker sent no log-probabilities although they were asked for")
    return token.logprobs


def token_text(tokenizer: Tokenizer, token_id: int) -> str:
    """`printable_token` of an id."""
    return printable_token(tokenizer.token_bytes(token_id))
