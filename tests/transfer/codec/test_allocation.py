"""Tiers under a budget: never over it, close to it, sinks first, and more where it matters more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ConfigError, TransferError
from protocol.layout import KvDtype, KvLayout
from protocol.wire_rule import WireCodec, WireRule
from tests.transfer.codec.pools import rule_of
from transfer.codec.allocation import Scores, TierPolicy, allocate, paper_tier_counts, spectrum_tiers
from transfer.codec.budget import (
    TokenSpan,
    least_bytes,
    minimum_budget,
    most_bytes_of_chunk,
    shared_budgets,
    sixteen_bit_bytes,
    sizes_of,
    spans_of,
)
from transfer.codec.tiers import TIER_4_BITS, TIER_8_BITS, TIER_16_BITS, Tiers, tier_counts

DEMO = KvLayout("demo", num_layers=30, num_kv_heads=3, head_dim=64, dtype=KvDtype.FLOAT32)
BITS = np.array([32, 16, 8, 7, 6, 5, 4])


def bytes_of(layout: KvLayout, rule: WireRule, tiers: Tiers) -> int:
    """What a chunk with these tiers has."""
    return sizes_of(layout, rule, tier_counts(tiers)).chunk_bytes


def scores_of(num_tokens: int, seed: int) -> Scores:
    """Importance with ties and zeros."""
    return np.random.default_rng(seed).integers(0, 50, num_tokens).astype(np.float32)


@st.composite
def demands(draw: st.DrawFn) -> tuple[WireRule, TokenSpan, Scores]:
    """A rule with a budget that its chunk can keep to."""
    codec = draw(st.sampled_from([WireCodec.CHANNEL, WireCodec.SPECTRUM]))
    first, num_tokens = draw(st.integers(0, 12)), draw(st.integers(1, 400))
    rule = rule_of(codec, num_sinks=draw(st.integers(0, 16)), allows_int4=draw(st.booleans()))
    span = TokenSpan(first, first + num_tokens)
    least = least_bytes(DEMO, rule, num_tokens, span.num_sinks(rule)) / sixteen_bit_bytes(DEMO, num_tokens)
    budget = min(1.0, least + draw(st.floats(1e-6, 1.0)) * max(0.0, 1 - least))
    return replace(rule, budget=budget), span, scores_of(num_tokens, draw(st.integers(0, 1000)))


@settings(max_examples=100, deadline=None)
@given(demands())
def test_a_budget_is_never_exceeded(demand: tuple[WireRule, TokenSpan, Scores]) -> None:
    """All bytes of a chunk are within the budget, or the rule is refused; sinks have 16 bits, no token too few."""
    rule, span, scores = demand
    try:
        tiers = allocate(DEMO, rule, span, scores)
    except ConfigError:
        assert least_bytes(DEMO, rule, span.num_tokens, span.num_sinks(rule)) > rule.budget * sixteen_bit_bytes(
            DEMO, span.num_tokens
        )
        return
    assert bytes_of(DEMO, rule, tiers) <= rule.budget * sixteen_bit_bytes(DEMO, span.num_tokens)
    assert np.all(tiers[: span.num_sinks(rule)] == TIER_16_BITS)
    assert tiers.max() <= (TIER_4_BITS if rule.allows_int4 else TIER_8_BITS)


@pytest.mark.parametrize("codec", [WireCodec.CHANNEL, WireCodec.SPECTRUM])
@pytest.mark.parametrize("num_tokens", [256, 777, 1024])
@pytest.mark.parametrize("budget", [0.3, 0.31, 0.36, 0.42, 0.5, 0.55, 0.6, 0.75, 0.9, 0.99])
def test_a_budget_is_used_within_a_hundredth(codec: WireCodec, num_tokens: int, budget: float) -> None:
    """From 256 tokens on a chunk has at least 99% of the bytes that it may have."""
    rule = rule_of(codec, budget, num_sinks=4)
    tiers = allocate(DEMO, rule, TokenSpan(0, num_tokens), scores_of(num_tokens, 1))
    used = bytes_of(DEMO, rule, tiers) / sixteen_bit_bytes(DEMO, num_tokens)
    assert 0.99 * budget <= used <= budget


@settings(max_examples=100, deadline=None)
@given(demands(), st.floats(0, 0.3))
def test_more_budget_never_takes_bits_away(demand: tuple[WireRule, TokenSpan, Scores], more: float) -> None:
    """Every token has at least as many bits under a larger budget."""
    rule, span, scores = demand
    richer = replace(rule, budget=min(1.0, rule.budget + more))
    least = least_bytes(DEMO, rule, span.num_tokens, span.num_sinks(rule))
    if least > rule.budget * sixteen_bit_bytes(DEMO, span.num_tokens):
        return
    assert np.all(BITS[allocate(DEMO, richer, span, scores)] >= BITS[allocate(DEMO, rule, span, scores)])


@settings(max_examples=100, deadline=None)
@given(demands())
def test_what_matters_more_has_no_fewer_bits(demand: tuple[WireRule, TokenSpan, Scores]) -> None:
    """Of two tokens that are no sinks, the more important one is at least as precise."""
    rule, span, scores = demand
    least = least_bytes(DEMO, rule, span.num_tokens, span.num_sinks(rule))
    if least > rule.budget * sixteen_bit_bytes(DEMO, span.num_tokens):
        return
    bits = BITS[allocate(DEMO, rule, span, scores)][span.num_sinks(rule) :]
    order = np.argsort(-scores[span.num_sinks(rule) :], kind="stable")
    assert np.all(np.diff(bits[order]) <= 0)


def test_planes_go_where_they_save_most() -> None:
    """A token that matters 17 times as much gets three planes before the others get one, its fourth after them."""
    scores = np.ones(64, dtype=np.float32)
    scores[7] = 17
    for counts, others in (((0, 0, 0, 1, 0, 0, 63, 0), 6), ((0, 0, 0, 1, 0, 63, 0, 0), 5)):
        limit = sizes_of(DEMO, rule_of(WireCodec.CHANNEL), counts).chunk_bytes
        tiers = allocate(DEMO, rule_of(WireCodec.CHANNEL), TokenSpan(0, 64), scores, limit)
        assert tiers[7] == 3
        assert np.all(np.delete(tiers, 7) == others)


def test_without_int4_the_floor_is_8_bits() -> None:
    """All four planes for every token, and FP16 for the most important with what is left."""
    rule = rule_of(WireCodec.CHANNEL, 0.6, allows_int4=False)
    tiers = allocate(DEMO, rule, TokenSpan(0, 256), scores_of(256, 2))
    assert set(tiers.tolist()) == {TIER_16_BITS, TIER_8_BITS}


@pytest.mark.parametrize(
    ("codec", "allows_int4", "low", "high"),
    [
        (WireCodec.CHANNEL, True, 0.28, 0.30),
        (WireCodec.CHANNEL, False, 0.53, 0.55),
        (WireCodec.SPECTRUM, True, 0.265, 0.28),
        (WireCodec.SPECTRUM, False, 0.515, 0.53),
        (WireCodec.UNIFORM_INT8, True, 0.515, 0.517),
        (WireCodec.UNIFORM_INT4, True, 0.265, 0.267),
        (WireCodec.FP8, False, 0.515, 0.517),
    ],
)
def test_a_budget_that_cannot_be_reached_is_refused(
    codec: WireCodec, allows_int4: bool, low: float, high: float
) -> None:
    """Just below the reachable minimum a rule is an error that names it; at the minimum it is kept."""
    rule = rule_of(codec, 1.0, num_sinks=4, allows_int4=allows_int4)
    least = minimum_budget(DEMO, rule, 1024)
    assert low < least < high
    span, scores = TokenSpan(0, 1024), scores_of(1024, 3)
    allocate(DEMO, replace(rule, budget=least + 1e-9), span, scores)
    with pytest.raises(ConfigError, match="at least 0"):
        allocate(DEMO, replace(rule, budget=least - 1e-4), span, scores)


def test_a_codec_of_4_bits_needs_them_allowed() -> None:
    """Uniform INT4 without INT4 is a contradiction, whatever the budget."""
    with pytest.raises(ConfigError, match="INT4 is not allowed"):
        minimum_budget(DEMO, rule_of(WireCodec.UNIFORM_INT4, allows_int4=False), 1024)


def test_bytes_that_are_too_few_are_refused() -> None:
    """A limit below the least that a chunk can have raises, rather than being passed over."""
    with pytest.raises(ConfigError, match="in 1000 bytes"):
        allocate(DEMO, rule_of(WireCodec.CHANNEL), TokenSpan(0, 64), scores_of(64, 1), max_bytes=1000)


@pytest.mark.parametrize("wrong", [[1.0] * 7, [1.0] * 7 + [-1.0], [1.0] * 7 + [float("nan")], [1.0] * 9], ids=str)
def test_importance_must_be_numbers_one_a_token(wrong: list[float]) -> None:
    """Too few, too many, negative or not finite: an error, not a guess."""
    with pytest.raises(TransferError, match="importance"):
        allocate(DEMO, rule_of(WireCodec.CHANNEL), TokenSpan(0, 8), np.array(wrong, dtype=np.float32))


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 1500), st.integers(16, 256), st.integers(0, 16), st.floats(0.27, 1.0), st.sampled_from([0, 16, 100])
)
def test_the_chunks_of_a_transfer_share_its_budget(
    num_tokens: int, chunk: int, num_sinks: int, budget: float, first: int
) -> None:
    """Together they keep to it where it can be kept at all; none has less than it needs or more than a slot has."""
    rule = rule_of(WireCodec.CHANNEL, budget, num_sinks=num_sinks)
    transfer = TokenSpan(first, first + num_tokens)
    if budget < minimum_budget(DEMO, rule, 1024 * chunk, chunk):
        with pytest.raises(ConfigError, match="cannot be reached"):
            shared_budgets(DEMO, rule, transfer, chunk)
        return
    spans, limits = spans_of(transfer, chunk), shared_budgets(DEMO, rule, transfer, chunk)
    least = [least_bytes(DEMO, rule, one.num_tokens, one.num_sinks(rule)) for one in spans]
    used = [
        bytes_of(DEMO, rule, allocate(DEMO, rule, one, scores_of(one.num_tokens, 1), limit))
        for one, limit in zip(spans, limits, strict=True)
    ]
    assert all(low <= limit <= most_bytes_of_chunk(DEMO, rule, chunk) for low, limit in zip(least, limits, strict=True))
    assert sum(used) <= max(sum(least), budget * sixteen_bit_bytes(DEMO, num_tokens))


@pytest.mark.parametrize(
    ("budget", "policy", "expected"),
    [
        (0.25, TierPolicy.GREEDY, (0, 0, 1000)),
        (0.3, TierPolicy.GREEDY, (0, 200, 800)),
        (0.5, TierPolicy.GREEDY, (0, 1000, 0)),
        (0.7, TierPolicy.GREEDY, (400, 600, 0)),
        (1.0, TierPolicy.GREEDY, (1000, 0, 0)),
        (0.5, TierPolicy.BALANCED, (200, 400, 400)),
        (0.7, TierPolicy.BALANCED, (400, 600, 0)),
    ],
)
def test_tier_sizes_are_the_papers(budget: float, policy: TierPolicy, expected: tuple[int, int, int]) -> None:
    """Greedy: f8 = 4b - 1 up to one half, then f16 = 2b - 1. Balanced: a fifth and two fifths of 4b - 1 for FP16 and INT8."""
    assert paper_tier_counts(1000, budget, policy) == expected


@given(st.integers(1, 500), st.floats(0.25, 1.0), st.sampled_from(list(TierPolicy)), st.booleans())
def test_tier_sizes_keep_to_the_nominal_budget(num: int, budget: float, policy: TierPolicy, allows_int4: bool) -> None:
    """No token is dropped and the nominal cost is within the budget, short of it by less than one promotion of each kind."""
    if not allows_int4 and budget < 0.5:
        with pytest.raises(ConfigError, match=r"0\.5"):
            paper_tier_counts(num, budget, policy, allows_int4=False)
        return
    exact, eight, four = paper_tier_counts(num, budget, policy, allows_int4=allows_int4)
    assert min(exact, eight, four) >= 0
    assert exact + eight + four == num
    cost = exact + eight / 2 + four / 4
    assert budget * num - 1.5 <= cost <= budget * num + 1e-5


def test_sinks_are_protected_from_ranking() -> None:
    """The first tokens are at FP16 whatever their rank; the others fill the tiers in the order given."""
    tiers = spectrum_tiers(np.array([5, 2, 4, 3]), 2, (1, 2, 1))
    assert tiers.tolist() == [1, 1, TIER_8_BITS, TIER_4_BITS, TIER_8_BITS, TIER_16_BITS]
