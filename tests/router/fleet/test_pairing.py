"""The choice of a pair, as a function of loads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.fleet.pairing import DecodeLoad, Pair, PairingQuestion, PrefillLoad, least_wait


def prefill(name: str, num_queued_tokens: int = 0, tokens_per_second: float = 1000.0) -> PrefillLoad:
    """A prefill worker's load."""
    return PrefillLoad(name, num_queued_tokens, tokens_per_second)


def decode(name: str, num_active: int = 0, num_held_tokens: int = 0, capacity_tokens: int = 10_000) -> DecodeLoad:
    """A decode worker's load."""
    return DecodeLoad(name, num_active, num_held_tokens, capacity_tokens)


def question(
    prefills: list[PrefillLoad],
    decodes: list[DecodeLoad],
    links: set[tuple[str, str]] | None = None,
    num_prompt_tokens: int = 100,
    min_remote_tokens: int = 0,
) -> PairingQuestion:
    """A prompt to be placed; everybody is linked unless `links` says otherwise."""
    if links is None:
        links = {(one.name, other.name) for one in prefills for other in decodes}
    return PairingQuestion(num_prompt_tokens, prefills, decodes, frozenset(links), min_remote_tokens)


def test_nobody_decodes() -> None:
    """Without a decode worker there is no pair, however many read prompts."""
    assert least_wait(question([prefill("p")], [])) is None


def test_a_decode_worker_alone_serves() -> None:
    """Without a prefill worker, or without a link to one, the decode worker reads the prompt."""
    assert least_wait(question([], [decode("d")])) == Pair(None, "d")
    assert least_wait(question([prefill("p")], [decode("d")], links=set())) == Pair(None, "d")


@pytest.mark.parametrize(("num_tokens", "reader"), [(9, None), (10, "p")])
def test_short_prompts_stay_where_they_are_decoded(num_tokens: int, reader: str | None) -> None:
    """Below the threshold nothing is sent anywhere."""
    asked = question([prefill("p")], [decode("d")], num_prompt_tokens=num_tokens, min_remote_tokens=10)
    assert least_wait(asked) == Pair(reader, "d")


def test_the_shorter_queue_in_seconds_wins() -> None:
    """Not the one with fewer tokens: a fast worker with more of them may be through sooner."""
    slow, fast = prefill("slow", 500, 100.0), prefill("fast", 2000, 1000.0)
    assert least_wait(question([slow, fast], [decode("d")])) == Pair("fast", "d")


def test_the_emptier_decode_worker_wins() -> None:
    """By its share of capacity, then by requests."""
    small, large = decode("small", 1, 500, 1_000), decode("large", 3, 600, 10_000)
    assert least_wait(question([prefill("p")], [small, large])) == Pair("p", "large")
    busy, idle = decode("busy", 2), decode("idle", 1)
    assert least_wait(question([prefill("p")], [busy, idle])) == Pair("p", "idle")


def test_a_full_decode_worker_is_used_when_it_is_the_only_one_linked() -> None:
    """A link is worth more than room: the prompt is read by a prefill worker if that can be."""
    asked = question([prefill("p")], [decode("full", 9, 9_900), decode("empty")], links={("p", "full")})
    assert least_wait(asked) == Pair("p", "full")


NAMES = st.sampled_from(["a", "b", "c"])
PREFILLS = st.lists(
    st.builds(PrefillLoad, NAMES, st.integers(0, 10**6), st.floats(1.0, 1e6)), unique_by=lambda p: p.name
)
DECODES = st.lists(
    st.builds(DecodeLoad, NAMES, st.integers(0, 99), st.integers(0, 10**6), st.integers(1, 10**6)),
    unique_by=lambda d: d.name,
)


@given(PREFILLS, DECODES, st.sets(st.tuples(NAMES, NAMES)), st.integers(1, 10**5), st.integers(0, 10**5))
def test_any_choice_can_be_used(
    prefills: list[PrefillLoad],
    decodes: list[DecodeLoad],
    links: set[tuple[str, str]],
    num_tokens: int,
    threshold: int,
) -> None:
    """Whatever the loads: workers that exist, linked if there are two, and the same answer in any order."""
    asked = question(prefills, decodes, links, num_tokens, threshold)
    pair = least_wait(asked)
    if pair is None:
        assert not decodes
        return
    assert pair.decode in {one.name for one in decodes}
    if pair.prefill is not None:
        assert (pair.prefill, pair.decode) in links
        assert num_tokens >= threshold
    mirrored = question(prefills[::-1], decodes, links, num_tokens, threshold)
    assert least_wait(mirrored) == pair
