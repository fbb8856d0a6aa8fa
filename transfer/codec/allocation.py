"""Which token gets how many bits: the tiers of one chunk under a budget of bytes. Pure arithmetic on NumPy arrays.

`channel` is embedded, so that precision is bought plane by plane: one more plane of a token cuts its squared error to a
quarter, so it gains importance * 4^-k when the token has k already. Taking the largest gains first is optimal, and always
takes a token's planes in order, because its gains fall. `spectrum` has SpectrumKV's tiers and their sizes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from protocol.errors import ConfigError, TransferError
from protocol.layout import KvLayout
from protocol.wire_rule import WireCodec, WireRule
from transfer.codec.budget import TokenSpan, lowest_tier, most, most_exact, only_tier, sizes_of, strict_budget
from transfer.codec.tiers import (
    NUM_PLANES,
    TIER_4_BITS,
    TIER_8_BITS,
    TIER_16_BITS,
    Tiers,
    tier_counts,
    tier_of_planes,
    uniform,
)

Scores: TypeAlias = npt.NDArray[np.float32]
"""`[num_tokens]`: a larger number matters more. Finite and not negative."""


class TierPolicy(StrEnum):
    """SpectrumKV's ways to size its tiers."""

    GREEDY = "greedy"
    BALANCED = "balanced"


def allocate(
    layout: KvLayout, rule: WireRule, span: TokenSpan, importance: Scores, max_bytes: int | None = None
) -> Tiers:
    """The tier of each token of the chunk `span`, whose importance is `[span.num_tokens]`.

    The chunk, with header, map, scales and padding, has at most `max_bytes` bytes and comes as close as tokens and planes
    allow; without it the bytes are the rule's budget of this chunk alone. Sinks have 16 bits where the codec has them.
    Raises `ConfigError` when the rule cannot be kept, `TransferError` for an importance that is none.
    """
    limit = strict_budget(layout, rule, span) if max_bytes is None else max_bytes
    tier = only_tier(rule)
    if tier is not None:
        return uniform(span.num_tokens, lowest_tier(rule))
    scores = _checked(importance, span)
    num_sinks = span.num_sinks(rule)
    fits = _Fits(layout, rule, limit)
    if rule.codec is WireCodec.CHANNEL:
        tiers = _channel_tiers(fits, scores, num_sinks)
    else:
        tiers = _spectrum_tiers(fits, scores, num_sinks)
    if not fits(tiers):
        tiers = uniform(span.num_tokens, TIER_16_BITS)  # too few tokens to be worth the parameters of a group
    if not fits(tiers):
        raise ConfigError(
            f"{rule.codec} cannot write tokens {span.first} to {span.end} in {limit} bytes", param="kv_wire_budget"
        )
    return tiers


def paper_tier_counts(
    num_tokens: int, budget: float, policy: TierPolicy = TierPolicy.GREEDY, *, allows_int4: bool = True
) -> tuple[int, int, int]:
    """Tokens at FP16, INT8 and INT4 under SpectrumKV's nominal costs 1, 1/2 and 1/4: scales and map are not counted.

    Greedy fills INT8 first and then FP16, so that FP16 and INT4 never meet; balanced gives FP16 a fifth and INT8 two fifths
    of 4b - 1, as the released code does. Without INT4, greedy has FP16 and INT8. Raises `ConfigError` below 1/4, or 1/2
    without INT4, where the paper drops tokens.
    """
    least = 0.25 if allows_int4 else 0.5
    if not least <= budget <= 1.0:
        raise ConfigError(f"these tiers reach budgets from {least} to 1, not {budget}", param="kv_wire_budget")
    # A budget that came from whole tokens gives them back.
    quarters = int((4 * budget - 1) * num_tokens + 1e-6)
    if policy is TierPolicy.BALANCED and allows_int4:
        # From b = 2/3 on its tiers would be more than all tokens; there it meets greedy, which goes on.
        exact, eight = quarters // 5, 2 * quarters // 5
        if exact + eight <= num_tokens:
            return exact, eight, num_tokens - exact - eight
    exact = max(0, (quarters - num_tokens) // 2)
    eight = min(quarters, num_tokens) - exact if allows_int4 else num_tokens - exact
    return exact, eight, num_tokens - exact - eight


def spectrum_tiers(ranked: npt.NDArray[np.int64], num_sinks: int, counts: tuple[int, int, int]) -> Tiers:
    """SinkProtect: the first `num_sinks` tokens at FP16, then tier sizes filled with the others, most important first.

    `ranked` has the other tokens' positions; `counts` are theirs at FP16, INT8 and INT4.
    """
    tiers = uniform(num_sinks + len(ranked), TIER_16_BITS)
    tiers[ranked[counts[0] : counts[0] + counts[1]]] = TIER_8_BITS
    tiers[ranked[counts[0] + counts[1] :]] = TIER_4_BITS
    return tiers


class _Fits:
    """Whether tiers keep to the bytes."""

    def __init__(self, layout: KvLayout, rule: WireRule, max_bytes: int) -> None:
        self.layout = layout
        self.rule = rule
        self.max_bytes = max_bytes

    def __call__(self, tiers: Tiers) -> bool:
        return sizes_of(self.layout, self.rule, tier_counts(tiers)).chunk_bytes <= self.max_bytes


def _checked(importance: Scores, span: TokenSpan) -> npt.NDArray[np.float64]:
    scores = np.asarray(importance, dtype=np.float64)
    if scores.shape != (span.num_tokens,) or not np.all(np.isfinite(scores)) or np.any(scores < 0):
        raise TransferError(
            f"importance must be {span.num_tokens} finite numbers that are not negative, one a token of the chunk"
        )
    return scores


def _ranked(scores: npt.NDArray[np.float64], num_sinks: int) -> npt.NDArray[np.int64]:
    """Tokens that are no sinks, most important first, the earlier first among equals."""
    return num_sinks + np.argsort(-scores[num_sinks:], kind="stable")


def _channel_tiers(fits: _Fits, scores: npt.NDArray[np.float64], num_sinks: int) -> Tiers:
    num_coded = len(scores) - num_sinks
    least = 0 if fits.rule.allows_int4 else NUM_PLANES
    # Row k is the gain of plane k + 1. Equal gains go to earlier planes, then to earlier tokens.
    gains = scores[num_sinks:] * 0.25 ** np.arange(least, NUM_PLANES)[:, None]
    token_of_rank = np.argsort(-gains.ravel(), kind="stable") % max(num_coded, 1)

    def with_planes(num_given: int) -> Tiers:
        planes = least + np.bincount(token_of_rank[:num_given], minlength=num_coded)[:num_coded]
        return np.concatenate([uniform(num_sinks, TIER_16_BITS), tier_of_planes(planes)])

    num_given = most(len(token_of_rank), lambda number: fits(with_planes(number)))
    tiers = with_planes(num_given)
    if num_given == len(token_of_rank):
        # Bytes that are left when all have all planes go to 16 bits for the most important tokens.
        num_exact = most_exact(fits.layout, fits.rule, len(scores), fits.max_bytes)
        tiers[_ranked(scores, num_sinks)[: max(0, num_exact - num_sinks)]] = TIER_16_BITS
    return tiers


def _spectrum_tiers(fits: _Fits, scores: npt.NDArray[np.float64], num_sinks: int) -> Tiers:
    """Greedy at the largest nominal budget whose real bytes fit: nominal budgets go in steps of one token's promotion."""
    ranked = _ranked(scores, num_sinks)
    allows_int4 = fits.rule.allows_int4
    least, width = (1, 3) if allows_int4 else (2, 2)

    def at(step: int) -> Tiers:
        nominal = min(1.0, (least + step / max(len(ranked), 1)) / 4)
        return spectrum_tiers(ranked, num_sinks, paper_tier_counts(len(ranked), nominal, allows_int4=allows_int4))

    return at(most(width * len(ranked), lambda step: fits(at(step))))
