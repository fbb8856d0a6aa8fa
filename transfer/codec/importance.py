"""How much each token's KV matters: one number a token, larger for more. Whoever allots bits compares them, no one adds them.

Scores are finite and not negative; those that squared errors are weighed with, so four times as much is worth one bit.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from protocol.errors import TransferError
from protocol.ids import wire_id
from protocol.wire_rule import Importance
from transfer.codec.allocation import Scores
from transfer.codec.budget import TokenSpan
from transfer.codec.pool_view import PoolView
from transfer.codec.rows import split

RECENT_TOKENS = 64
FIRST_TOKENS = 16


def positional(num_tokens: int) -> Scores:
    """`[num_tokens]` from the place alone: 1 for the first token and the last `RECENT_TOKENS`, falling in between.

    With distance d to the end it is 64 / (d + 1) beyond 64, and 16 / (i + 16) for token i; the larger of both counts. So
    attention's two habits are followed: recent tokens fall off slowly, the beginning quickly.
    """
    places = np.arange(num_tokens, dtype=np.float64)
    recent = np.minimum(1.0, RECENT_TOKENS / (num_tokens - places))
    return np.maximum(recent, FIRST_TOKENS / (places + FIRST_TOKENS)).astype(np.float32)


def random_scores(num_tokens: int, request_id: str) -> Scores:
    """`[num_tokens]` between 0 and 1, the same whenever this request is asked for."""
    seed = int.from_bytes(wire_id(request_id), "little")
    return np.random.default_rng(seed).random(num_tokens, dtype=np.float32)


def key_norms(view: PoolView, span: TokenSpan) -> Scores:
    """`[span.num_tokens]`: the mean over layers and heads of the length of K. Raises `TransferError` where it has none."""
    slots = view.slots(span.first, span.num_tokens)
    flat = view.flat()
    total = torch.zeros(span.num_tokens, dtype=torch.float32, device=flat.device)
    for layer in range(0, flat.shape[0], 2):
        heads = split(flat[layer].index_select(0, slots).float(), 1, view.pool.shape[4])
        total += torch.linalg.vector_norm(heads, dim=2).mean(dim=1)
    if not bool(torch.isfinite(total).all()):
        raise TransferError("the KV holds NaN or infinity: it is not sent lossily")
    found: Scores = total.div_(flat.shape[0] // 2).cpu().numpy()
    return found


def paper_positional(num_tokens: int, num_sinks: int = 4) -> Scores:
    """`[num_tokens]`: the score that SpectrumKV's released code ranks by (arXiv 2606.08635), for comparison.

    Sinks 1; exp(-0.01 i) counted from the first other token, so older is more; the last fifth at least a ramp from 0.3 to
    0.8; then stretched to lie between 0 and 1.
    """
    scores = np.ones(num_tokens)
    num_others = max(0, num_tokens - num_sinks)
    scores[num_sinks:] = np.exp(-0.01 * np.arange(num_others))
    num_recent = num_tokens // 5
    if num_recent:
        scores[-num_recent:] = np.maximum(scores[-num_recent:], np.linspace(0.3, 0.8, num_recent))
    low, high = scores.min(initial=1.0), scores.max(initial=0.0)
    return ((scores - low) / (high - low) if high > low else scores).astype(np.float32)


def given_scores(importance: Sequence[float] | Scores, span: TokenSpan) -> Scores:
    """The part of a prompt's scores that belongs to a chunk. Raises `TransferError` when they end before it does."""
    if len(importance) < span.end:
        raise TransferError(f"{len(importance)} importance scores do not cover tokens {span.first} to {span.end}")
    return np.asarray(importance[span.first : span.end], dtype=np.float32)


def scores_without_view(kind: Importance, request_id: str, num_tokens: int, span: TokenSpan) -> Scores:
    """A chunk's scores where neither attention nor KV has been looked at: random, or else positional."""
    every = random_scores(num_tokens, request_id) if kind is Importance.RANDOM else positional(num_tokens)
    return every[span.first : span.end]
