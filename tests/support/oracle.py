"""The oracle: one engine, one sequence, the whole prompt in one piece, then token by token. Everything else must equal it."""

from __future__ import annotations

from collections.abc import Sequence

from engine.batch import Draw, SequenceSlice, StepBatch
from engine.engine import Engine
from protocol.request import SamplingParams


def answer_in_one_piece(
    engine: Engine, prompt: Sequence[int], num_tokens: int, sampling: SamplingParams | None = None
) -> list[int]:
    """The `num_tokens` tokens after `prompt`. Uses the engine's blocks from 0 on: nobody else may."""
    sampling = sampling or SamplingParams(temperature=0.0)
    block_ids = list(range(engine.layout.num_blocks_for(len(prompt) + num_tokens)))
    tokens = list(prompt)
    start = 0
    for _ in range(num_tokens):
        draw = Draw(sampling, tuple(tokens), len(prompt))
        piece = SequenceSlice("oracle", tokens[start:], start, block_ids, (draw,))
        start = len(tokens)
        tokens.append(engine.step(StepBatch((piece,))).tokens[0].token_id)
    return tokens[len(prompt) :]


def prompt_of(num_tokens: int, vocab_size: int, seed: int = 0) -> list[int]:
    """A prompt of pseudo-random ids, different for every length and seed."""
    state = (num_tokens * 7919 + seed * 104729 + 1) % 2147483647
    ids = []
    for _ in range(num_tokens):
        state = state * 48271 % 2147483647
        ids.append(3 + state % (vocab_size - 3))
    return ids
