"""Log-probabilities as they are reported: of the model itself, at temperature 1, in float32.

Knows nothing of how tokens are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from protocol.request import TokenLogprobs

MAX_ROWS_AT_ONCE = 64
"""Rows of logits that exist at the same time while a prompt is scored: a vocabulary can have 256 Ki entries."""


def report(logits: torch.Tensor, tokens: Sequence[int], nums_top: Sequence[int]) -> list[TokenLogprobs]:
    """For each row of `logits` (float32 `[R, vocab_size]`) its token's log-probability and those of its `nums_top[r]`
    most likely tokens, most likely first.
    """
    table = logits.log_softmax(dim=-1)
    chosen = table.gather(1, torch.tensor(tokens, dtype=torch.int64, device=logits.device)[:, None])[:, 0].tolist()
    nums_top = [min(each, logits.shape[-1]) for each in nums_top]
    top = table.topk(max(nums_top), dim=-1)
    values, ids = top.values.tolist(), top.indices.tolist()
    return [
        TokenLogprobs(chosen[row], tuple(zip(ids[row][:num], values[row][:num], strict=True)))
        for row, num in enumerate(nums_top)
    ]


def score(
    logits_of: Callable[[torch.Tensor], torch.Tensor], hidden: torch.Tensor, targets: Sequence[int], num_top: int
) -> list[TokenLogprobs]:
    """What `report` says of `targets` `[R]`, of which `logits_of(hidden)` (`hidden` `[R, hidden_size]`) are the logits.

    The logits are made for `MAX_ROWS_AT_ONCE` rows at a time.
    """
    found: list[TokenLogprobs] = []
    for first in range(0, len(targets), MAX_ROWS_AT_ONCE):
        some = targets[first : first + MAX_ROWS_AT_ONCE]
        found += report(logits_of(hidden[first : first + len(some)]), some, [num_top] * len(some))
    return found
