"""Prompts as token ids, made from a seed. Pure: equal arguments, equal tokens, in any process."""

from __future__ import annotations

import random

from benchmarks.load.traces import MOONCAKE_BLOCK_TOKENS, TraceRow, scaled_length

FIRST_TOKEN_ID = 256
"""Ids below are left out: vocabularies keep single bytes and special tokens there."""


def random_prompt(num_tokens: int, vocab_size: int, key: str) -> list[int]:
    """`num_tokens` ids drawn from `[FIRST_TOKEN_ID, vocab_size)`, determined by `key`."""
    if vocab_size <= FIRST_TOKEN_ID:
        raise ValueError(f"the vocabulary must be larger than {FIRST_TOKEN_ID}, got {vocab_size}")
    return random.Random(key).choices(range(FIRST_TOKEN_ID, vocab_size), k=num_tokens)


def trace_prompt(row: TraceRow, index: int, factor: float, vocab_size: int, seed: int) -> list[int]:
    """The prompt of a trace's `index`-th row with lengths scaled by `factor`: equal block ids give equal tokens."""
    length = scaled_length(row.prompt_tokens, factor)
    block_tokens = scaled_length(MOONCAKE_BLOCK_TOKENS, factor)
    tokens: list[int] = []
    for block_id in row.block_ids:
        if len(tokens) >= length:
            break
        tokens += random_prompt(block_tokens, vocab_size, f"block/{seed}/{block_id}")
    if len(tokens) < length:
        tokens += random_prompt(length - len(tokens), vocab_size, f"own/{seed}/{index}")
    return tokens[:length]
