"""Log-probabilities of a prompt's tokens as answers show them: vLLM's `prompt_logprobs`. Knows no endpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.errors import KvferryError
from protocol.request import PromptLogprobs, TokenLogprobs
from router.front.token_text import finite_logprob, token_text
from router.tokenization.tokenizer import Tokenizer

PromptLogprobsJson = list[dict[str, dict[str, Any]] | None]


def prompt_scores(num_prompt_tokens: int, logprobs: PromptLogprobs | None) -> list[TokenLogprobs | None]:
    """An entry for each token of a prompt, None for the first.

    Raises `KvferryError` when the worker did not send what was asked for.
    """
    if logprobs is None or len(logprobs) != num_prompt_tokens - 1:
        sent = "no" if logprobs is None else str(len(logprobs))
        raise KvferryError(f"the worker sent {sent} log-probabilities of a prompt of {num_prompt_tokens} tokens")
    return [None, *logprobs]


def prompt_logprobs_json(
    tokenizer: Tokenizer, prompt_token_ids: Sequence[int], logprobs: PromptLogprobs | None, num_top: int | None = None
) -> PromptLogprobsJson:
    """One entry for each token of the prompt: null for the first, else an object by token id.

    It holds the `num_top` most likely tokens (None: all that were sent), the likeliest first, and the prompt's own.
    Raises `KvferryError` as `prompt_scores` does.
    """
    shaped: PromptLogprobsJson = []
    scores = prompt_scores(len(prompt_token_ids), logprobs)
    for token_id, score in zip(prompt_token_ids, scores, strict=True):
        shaped.append(None if score is None else _entry(tokenizer, token_id, score, num_top))
    return shaped


def _entry(tokenizer: Tokenizer, token_id: int, score: TokenLogprobs, num_top: int | None) -> dict[str, dict[str, Any]]:
    scored = dict(score.top[:num_top])
    scored.setdefault(token_id, score.logprob)
    return {
        str(other): {"logprob": finite_logprob(logprob), "decoded_token": token_text(tokenizer, other)}
        for other, logprob in scored.items()
    }
