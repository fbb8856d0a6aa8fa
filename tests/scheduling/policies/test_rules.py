"""Each policy's rule on a small table, and how policies are made."""

from __future__ import annotations

import pytest

from protocol.errors import ConfigError
from scheduling.policies.choose import BENCHMARK_POLICIES, SERVING_POLICIES, PolicySettings, make_policy
from scheduling.policies.fcfs import Fcfs
from scheduling.policies.policy import Policy, Room
from scheduling.policies.priority import PriorityFirst
from scheduling.policies.qba import QbaSettings, QuotaBoundedAging
from scheduling.policies.sjf import ShortestJobFirst
from scheduling.policies.spf import ShortestPromptFirst
from scheduling.policies.spf_aging import AgingShortestPromptFirst
from scheduling.policies.srpt import ShortestRemainingFirst
from scheduling.work import Grant, Work
from tests.scheduling.queues import order_of, queue_of


def _grants(policy: Policy, prefilling: list[Work], num_tokens: int, now: float = 0.0) -> list[Grant]:
    return policy.divide(queue_of(policy, [], prefilling, now), Room(num_tokens, 8))


def test_fcfs_goes_by_arrival() -> None:
    """Neither length nor progress matters."""
    works = [Work("a", 1, 0, 3), Work("b", 99, 0, 1), Work("c", 5, 4, 2)]
    assert order_of(Fcfs(), works) == ["b", "c", "a"]


def test_spf_counts_what_is_not_cached() -> None:
    """A long prompt of which much is cached is short; equals go by arrival."""
    works = [Work("half", 100, 50, 1), Work("cached", 1000, 990, 2), Work("short", 50, 0, 3), Work("tiny", 9, 0, 4)]
    assert order_of(ShortestPromptFirst(), works) == ["tiny", "cached", "half", "short"]


def test_spf_lets_a_short_prompt_into_the_next_step() -> None:
    """One that is read already waits, unless it has less left."""
    grants = _grants(ShortestPromptFirst(), [Work("long", 900, 300, 1), Work("short", 100, 0, 2)], 256)
    assert grants == [Grant("short", 100), Grant("long", 156)]


def test_waiting_makes_a_prompt_shorter() -> None:
    """At 10 tokens a second, ten seconds outweigh 99 tokens and not 101, at any time."""
    old = Work("old", 200, 0, 1, arrival_s=0.0)
    for now in (10.0, 1000.0):
        policy = AgingShortestPromptFirst(10.0)
        assert order_of(policy, [Work("new", 101, 0, 2, arrival_s=10.0), old], now=now) == ["old", "new"]
        assert order_of(policy, [Work("new", 99, 0, 2, arrival_s=10.0), old], now=now) == ["new", "old"]


def test_a_level_of_priority_is_worth_ten_seconds() -> None:
    """The more urgent goes first, unless the other has waited for longer than that."""
    usual = Work("usual", 9, 0, 1, arrival_s=0.0)
    assert order_of(PriorityFirst(), [usual, Work("urgent", 9, 0, 2, arrival_s=9.0, priority=-1)]) == [
        "urgent",
        "usual",
    ]
    assert order_of(PriorityFirst(), [usual, Work("urgent", 9, 0, 2, arrival_s=11.0, priority=-1)]) == [
        "usual",
        "urgent",
    ]
    assert order_of(PriorityFirst(), [usual, Work("urgent", 9, 0, 2, arrival_s=999.0, priority=-(10**9))]) == [
        "urgent",
        "usual",
    ]


def test_sjf_goes_by_prompt_and_predicted_output_and_interrupts_nobody() -> None:
    """A longer prompt with a shorter answer may go first; what has been started goes on before all."""
    chatty, terse = Work("chatty", 10, 0, 1, num_predicted_output=500), Work("terse", 400, 0, 2, num_predicted_output=5)
    assert order_of(ShortestJobFirst(), [chatty, terse]) == ["terse", "chatty"]
    started = Work("started", 5000, 16, 3, num_predicted_output=500)
    cached = Work("cached", 5000, 16, 4, num_predicted_output=500, num_cached_at_start=16)
    grants = _grants(ShortestJobFirst(), [chatty, started, cached], 4994)
    assert grants == [Grant("started", 4984), Grant("chatty", 10)]


def test_srpt_goes_by_what_is_left() -> None:
    """A job that was long and is nearly through goes before one that is short and new."""
    nearly = Work("nearly", 5000, 4990, 1, num_predicted_output=20)
    new = Work("new", 100, 0, 2, num_predicted_output=20)
    newer = Work("newer", 20, 0, 3, num_predicted_output=9)
    assert [one.request_id for one in _grants(ShortestRemainingFirst(), [new, nearly, newer], 10_000)] == [
        "newer",
        "nearly",
        "new",
    ]


def test_qba_lifts_one_aged_request_at_a_time() -> None:
    """The oldest, once it is aged, unless an older one is read already."""
    policy = QuotaBoundedAging(QbaSettings(age_s=5.0))
    waiting = [
        Work("old", 900, 0, 1, arrival_s=0.0),
        Work("older", 800, 0, 2, arrival_s=0.5),
        Work("new", 9, 0, 3, arrival_s=4.0),
    ]
    assert order_of(policy, waiting, now=4.9) == ["new", "older", "old"]
    assert order_of(policy, waiting, now=5.0) == ["old", "new", "older"]
    assert order_of(policy, waiting, [Work("oldest", 700, 64, 0)], now=6.0) == ["new", "older", "old"]


def test_qba_gives_the_aged_their_quota_and_the_rest_by_rank() -> None:
    """A fifth of the step, the oldest first; what the others leave of the rest is theirs too."""
    policy = QuotaBoundedAging(QbaSettings(age_s=5.0, quota=0.2))
    old, new = Work("old", 900, 0, 1, arrival_s=0.0), Work("new", 70, 0, 2, arrival_s=9.0)
    assert _grants(policy, [new, old], 100, now=9.0) == [Grant("old", 30), Grant("new", 70)]
    busy = Work("busy", 700, 0, 3, arrival_s=9.0)
    assert _grants(policy, [new, old, busy], 100, now=9.0) == [Grant("old", 20), Grant("new", 70), Grant("busy", 10)]
    assert _grants(policy, [new, old, busy], 100, now=4.9) == [Grant("new", 70), Grant("busy", 30)]


def test_qba_owes_what_an_aged_request_could_not_take() -> None:
    """Up to the debt's bound, paid at once when it can be, and forgotten when nobody aged is there."""
    policy = QuotaBoundedAging(QbaSettings(age_s=5.0, quota=0.1, max_debt_steps=3.0))
    old, new = Work("old", 900, 0, 1, arrival_s=0.0), Work("new", 700, 0, 2, arrival_s=9.0)
    for owed in (10.0, 20.0, 30.0, 30.0):
        policy.divide(queue_of(policy, [old], [new], now=9.0), Room(100, 8))
        assert policy.debt_tokens == owed
    assert _grants(policy, [new, old], 100, now=9.0) == [Grant("old", 40), Grant("new", 60)]
    assert policy.debt_tokens == 0.0
    policy.divide(queue_of(policy, [old], [new], now=9.0), Room(100, 8))
    policy.divide(queue_of(policy, [], [new], now=9.0), Room(100, 8))
    assert policy.debt_tokens == 0.0


def test_servers_refuse_the_oracle_and_what_is_no_policy() -> None:
    """By name, with what there is instead."""
    assert set(BENCHMARK_POLICIES) - set(SERVING_POLICIES) == {"oracle"}
    with pytest.raises(ConfigError, match="which no server does"):
        make_policy("oracle")
    with pytest.raises(ConfigError, match=r"use fcfs, priority, .* or qba"):
        make_policy("lifo")


@pytest.mark.parametrize(
    "settings",
    [
        PolicySettings(quota=0.0),
        PolicySettings(quota=1.0),
        PolicySettings(max_debt_steps=0.5),
        PolicySettings(ttft_target_s=-1),
    ],
)
def test_a_quota_that_bounds_nothing_is_refused(settings: PolicySettings) -> None:
    """All or none of a step is no quota, and a debt of less than a step is none."""
    with pytest.raises(ConfigError):
        make_policy("qba", settings)


def test_ageing_needs_a_rate() -> None:
    """Without one, nobody would age."""
    with pytest.raises(ConfigError):
        make_policy("spf-aging", PolicySettings(prefill_tokens_per_s=0.0))
