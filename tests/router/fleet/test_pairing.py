"""The rules by which a pair is chosen."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from router.config import RoutingPolicy
from router.fleet.pairing import POLICIES, PairPolicy, least_loaded, power_of_two, round_robin
from scheduling.pair_cost import Pair, least_cost
from tests.scheduling.loads import decode, linked, prefill, question

ALL = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
TWO = [prefill("p0"), prefill("p1")]


def test_every_name_has_its_rule() -> None:
    """What the setting offers can be had."""
    assert set(POLICIES) == set(RoutingPolicy)


@pytest.mark.parametrize("num_workers", [1, 2, 8])
def test_joint_is_the_least_cost(num_workers: int) -> None:
    """Of few workers as of many, each pair in turn being the cheapest."""
    names = [str(number) for number in range(num_workers)]
    decodes = [decode(f"d{name}") for name in names]
    for best in range(num_workers):
        prefills = [prefill(f"p{name}", num_queued_tokens=0 if name == names[best] else 9000) for name in names]
        asked = question(prefills, decodes)
        chosen = POLICIES[RoutingPolicy.JOINT](asked)
        assert chosen == least_cost(asked)
        assert chosen is not None
        assert chosen.prefill == f"p{best}"


@ALL
def test_nobody_decodes(policy: PairPolicy) -> None:
    """Then there is no pair."""
    assert policy(question([prefill("p")], [])) is None


@ALL
def test_a_decode_worker_alone_serves(policy: PairPolicy) -> None:
    """Without a prefill worker, or a link to one, it reads the prompt."""
    assert policy(question([], [decode("d")])) == Pair(None, "d")
    assert policy(question([prefill("p")], [decode("d")], {})) == Pair(None, "d")


@ALL
@pytest.mark.parametrize(("num_tokens", "reader"), [(9, None), (10, "p")])
def test_short_prompts_stay_where_they_are_decoded(policy: PairPolicy, num_tokens: int, reader: str | None) -> None:
    """Below the threshold nothing is sent anywhere."""
    asked = replace(question([prefill("p")], [decode("d")], num_prompt_tokens=num_tokens), min_remote_tokens=10)
    assert policy(asked) == Pair(reader, "d")


@ALL
def test_only_linked_pairs_are_chosen(policy: PairPolicy) -> None:
    """However often it is asked; D without a link may only be chosen alone."""
    asked = question(TWO, [decode("d0"), decode("d1")], {("p0", "d1"): (1e9, 0.0)})
    for ordinal in range(20):
        pair = policy(replace(asked, ordinal=ordinal))
        assert pair is not None
        assert pair.prefill is None or pair == Pair("p0", "d1")


def test_round_robin_takes_all_pairs_in_turn() -> None:
    """Each as often as the others, whatever their loads; neighbours share no worker."""
    asked = question([prefill("p0", 9999), prefill("p1")], [decode("d0", 99), decode("d1")])
    chosen = [round_robin(replace(asked, ordinal=ordinal)) for ordinal in range(8)]
    pairs = [pair for pair in chosen if pair is not None]
    assert set(Counter(pairs).values()) == {2}
    assert len(Counter(pairs)) == 4
    assert [pair.prefill for pair in pairs] == ["p0", "p1"] * 4


def test_round_robin_without_prefill_workers_takes_decode_workers_in_turn() -> None:
    """One after the other."""
    asked = question([], [decode("d0"), decode("d1")])
    assert [round_robin(replace(asked, ordinal=n)) for n in range(3)] == [
        Pair(None, "d0"),
        Pair(None, "d1"),
        Pair(None, "d0"),
    ]


def test_least_loaded_counts_tokens_and_room_only() -> None:
    """Neither speed nor link: where `joint` takes the fast worker, it takes the one with fewer tokens."""
    prefills = [prefill("slow", 500, 100.0), prefill("fast", 600, 10_000.0)]
    asked = question(prefills, [decode("full", 1, 9_000), decode("empty", 9, 100)])
    assert least_loaded(asked) == Pair("slow", "empty")
    assert least_cost(asked) == Pair("fast", "empty")


def test_power_of_two_takes_the_less_loaded_of_two() -> None:
    """The most loaded of three is never chosen, the others are; the same question has the same answer."""
    prefills = [prefill("p0", 0), prefill("p1", 10), prefill("p2", 20)]
    decodes = [decode("d0", num_held_tokens=0), decode("d1", num_held_tokens=10), decode("d2", num_held_tokens=20)]
    asked = question(prefills, decodes, linked(prefills, ["d0", "d1", "d2"]))
    pairs = [power_of_two(replace(asked, ordinal=ordinal)) for ordinal in range(100)]
    assert {pair.prefill for pair in pairs if pair} == {"p0", "p1"}
    assert {pair.decode for pair in pairs if pair} == {"d0", "d1"}
    assert pairs == [power_of_two(replace(asked, ordinal=ordinal)) for ordinal in range(100)]
