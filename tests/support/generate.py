"""Runs one sequence through an engine, the plain way."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from engine.batch import Draw, SequenceSlice, StepBatch
from engine.engine import Engine
from protocol.request import SamplingParams

GREEDY = SamplingParams(temperature=0.0)


def slice_of(
    token_ids: Sequence[int], start: int, block_ids: Sequence[int], request_id: str = "a", is_sampled: bool = True
) -> SequenceSlice:
    """A slice that is sampled greedily, or not at all."""
    draws = (draw_of(GREEDY),) if is_sampled else ()
    return SequenceSlice(request_id, token_ids, start, block_ids, draws)


def draw_of(sampling: SamplingParams, tokens: Sequence[int] = (), num_prompt: int = 0) -> Draw:
    """The only draw of a slice. Without rules a draw looks at no tokens."""
    return Draw(sampling, tokens, num_prompt)


def logits_in_chunks(
    engine: Engine, token_ids: Sequence[int], chunks: Sequence[int], block_ids: Sequence[int]
) -> torch.Tensor:
    """Logits `[T, vocab_size]` of a prompt that is run in pieces of the given sizes."""
    found = []
    start = 0
    for size in chunks:
        part = slice_of(token_ids[start : start + size], start, block_ids)
        found.append(engine.logits(StepBatch((part,))))
        start += size
    return torch.cat(found)


def greedy_tokens(engine: Engine, prompt: Sequence[int], num_tokens: int, block_ids: Sequence[int]) -> list[int]:
    """The greedy continuation, prefilled in one piece and decoded token by token."""
    found: list[int] = []
    start, new = 0, list(prompt)
    while len(found) < num_tokens:
        result = engine.step(StepBatch((slice_of(new, start, block_ids),)))
        start += len(new)
        new = [result.tokens[0].token_id]
        found += new
    return found
