"""The choice of a pair over any fleet: as the plain loops have it, only what can be used, and the link where it pays."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scheduling.few_pairs import plain_choice, plain_costs
from scheduling.pair_cost import DecodeLoad, LinkLoads, Pair, PairingQuestion, PrefillLoad, least_cost, pair_costs
from scheduling.prefill_time import PrefillTimeModel, PromptWork
from tests.scheduling.loads import KV_BYTES, Links, decode, prefill, question

NAMES = st.sampled_from(["a", "b", "c"])
MODELS = st.one_of(
    st.just(PrefillTimeModel.stated()),
    st.floats(10.0, 1e6).map(lambda rate: PrefillTimeModel.stated().learn(PromptWork(1000), 1000 / rate)),
    st.floats(10.0, 1e6).map(
        lambda rate: PrefillTimeModel.stated().learn(PromptWork(9000, 100), 12_000 / rate).learn(PromptWork(9), 0.1)
    ),
)
TOKENS = st.integers(0, 10**6)
CACHED = st.sampled_from([0, 0, 0, 1, 50, 99])
KV = st.sampled_from([KV_BYTES, KV_BYTES / 2])
PREFILLS = st.lists(st.builds(PrefillLoad, NAMES, MODELS, TOKENS, CACHED, KV), unique_by=lambda one: one.name)
DECODES = st.lists(
    st.builds(
        DecodeLoad,
        NAMES,
        MODELS,
        st.integers(0, 99),
        TOKENS,
        st.integers(1, 10**6),
        st.floats(0, 60),
        TOKENS,
        CACHED,
        CACHED,
        KV,
    ),
    unique_by=lambda one: one.name,
)
LINKS = st.dictionaries(st.tuples(NAMES, NAMES), st.tuples(st.floats(1.0, 1e12), st.floats(0.0, 1e12)))


@st.composite
def questions(draw: st.DrawFn) -> PairingQuestion:
    """Any fleet, of up to three workers of each kind, and any prompt."""
    made = question(draw(PREFILLS), draw(DECODES), draw(LINKS), draw(st.integers(100, 10**5)))
    return replace(
        made,
        num_held_tokens=draw(st.integers(1, 10**5)),
        min_remote_tokens=draw(st.sampled_from([0, 0, 500])),
        wire_bytes_per_token=draw(st.sampled_from([None, KV_BYTES / 4])),
        chunk_tokens=draw(st.sampled_from([256, 64, 1024])),
        is_sent=draw(st.booleans()),
    )


@given(questions())
def test_the_costs_are_those_of_the_plain_loops(asked: PairingQuestion) -> None:
    """Of all candidates at once as of each by itself; what cannot be used costs infinitely much."""
    assume(asked.decodes)
    expected = plain_costs(asked)
    costs = pair_costs(asked)
    for column in range(len(asked.decodes)):
        assert costs.local[column] == pytest.approx(expected[None, column], rel=1e-6, abs=1e-6)
        for row in range(len(asked.prefills)):
            assert costs.remote[row, column] == pytest.approx(expected.get((row, column), math.inf), rel=1e-6, abs=1e-6)


@given(questions())
def test_the_choice_is_that_of_the_plain_loops(asked: PairingQuestion) -> None:
    """With all its rules for ties."""
    assert least_cost(asked) == plain_choice(asked)


@given(questions())
def test_any_choice_can_be_used(asked: PairingQuestion) -> None:
    """Whatever the loads: workers that are in the question, linked if there are two, and the same answer in any order."""
    pair = least_cost(asked)
    if pair is None:
        assert not asked.decodes
        return
    prefills, decodes = ([one.name for one in loads] for loads in (asked.prefills, asked.decodes))
    if pair.prefill is not None:
        row, column = prefills.index(pair.prefill), decodes.index(pair.decode)
        assert asked.links.bytes_per_second[row, column] > 0
        assert asked.num_prompt_tokens >= asked.min_remote_tokens
    assert pair.decode in decodes
    links = LinkLoads(asked.links.bytes_per_second[::-1, ::-1], asked.links.backlog_bytes[::-1, ::-1])
    assert least_cost(replace(asked, prefills=asked.prefills[::-1], decodes=asked.decodes[::-1], links=links)) == pair


@given(st.floats(1e5, 1e10), st.floats(1.0, 1e3), st.floats(0.0, 1e12), st.integers(256, 30_000))
def test_the_link_that_is_ready_first_wins(slow: float, times: float, backlog: float, num_tokens: int) -> None:
    """A near-idle slow link against a congested fast one, whatever their rates: the congested one is chosen only where it is
    through with all that is under way and the prompt no later, or within what counts as equal.
    """
    prompt_bytes = num_tokens * KV_BYTES
    fast_s, slow_s = (backlog + prompt_bytes) / (slow * times), prompt_bytes / slow
    links: Links = {("p", "fast"): (slow * times, backlog), ("p", "slow"): (slow, 0.0)}
    workers = (
        [prefill("p", tokens_per_second=1e6)],
        [decode(name, 10**6, capacity_tokens=10**9) for name in ("fast", "slow")],
    )
    pair = least_cost(question(*workers, links, num_tokens))
    assume(pair is not None and pair.prefill is not None)
    read_s = num_tokens / 1e6
    if max(fast_s, read_s) > 1.2 * (slow_s + read_s) + 0.01:
        assert pair == Pair("p", "slow")
    if max(slow_s, read_s) > 1.2 * (fast_s + read_s) + 0.01:
        assert pair == Pair("p", "fast")
