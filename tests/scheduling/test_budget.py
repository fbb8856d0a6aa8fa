"""Step budgets: never exceeded, used up, decodes first, then what is resumed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError
from scheduling.budget import StepLimits, plan_step
from scheduling.policies.choose import BENCHMARK_POLICIES, make_benchmark_policy
from scheduling.policies.fcfs import Fcfs
from scheduling.policies.policy import Queue
from scheduling.work import Grant, Work
from tests.scheduling.queues import queue_of

WORKS = st.lists(st.tuples(st.integers(1, 500), st.integers(0, 2)), max_size=20).map(
    lambda sizes: [
        Work(f"p{number}", size + 5, 5, number, num_generated=generated)
        for number, (size, generated) in enumerate(sizes)
    ]
)
POLICIES = st.sampled_from(BENCHMARK_POLICIES)


def _plan(decoding: int, prefilling: list[Work], limits: StepLimits, name: str = "fcfs") -> list[Grant]:
    policy = make_benchmark_policy(name)
    return plan_step(
        [f"d{number}" for number in range(decoding)], queue_of(policy, [], prefilling, now=9.0), limits, policy
    )


@given(st.integers(0, 20), WORKS, st.integers(1, 300), st.integers(1, 30), POLICIES)
def test_a_step_never_exceeds_its_limits(
    num_decoding: int, prefilling: list[Work], tokens: int, sequences: int, name: str
) -> None:
    """Under every policy tokens and sequences stay within the limits, each sequence appears once, and decodes come first."""
    grants = _plan(num_decoding, prefilling, StepLimits(tokens, sequences), name)
    assert sum(grant.num_tokens for grant in grants) <= tokens
    assert len(grants) <= sequences
    assert len({grant.request_id for grant in grants}) == len(grants)
    assert all(grant.num_tokens >= 1 for grant in grants)
    num_decodes = min(num_decoding, tokens, sequences)
    assert grants[:num_decodes] == [Grant(f"d{number}", 1) for number in range(num_decodes)]


@given(WORKS, st.integers(1, 300), POLICIES)
def test_no_budget_is_left_while_a_prefill_needs_it(prefilling: list[Work], tokens: int, name: str) -> None:
    """Under every policy all tokens of the budget are granted, or all prefills are complete."""
    grants = _plan(0, prefilling, StepLimits(tokens, 100), name)
    num_wanted = sum(work.num_uncached for work in prefilling)
    assert sum(grant.num_tokens for grant in grants) == min(tokens, num_wanted)
    wanted = {work.request_id: work.num_uncached for work in prefilling}
    assert all(grant.num_tokens <= wanted[grant.request_id] for grant in grants)


def test_a_prefill_is_cut_where_the_budget_ends() -> None:
    """Decodes take one token each, the first prefill the rest, the second waits."""
    grants = _plan(2, [Work("a", 50, 0, 3), Work("b", 50, 0, 4)], StepLimits(20, 8))
    assert grants == [Grant("d0", 1), Grant("d1", 1), Grant("a", 18)]


def test_resumed_requests_come_before_prompts() -> None:
    """Whatever the policy says: somebody reads their text already. Among them the oldest is first."""
    works = [Work("short", 5, 0, 1), Work("young", 30, 0, 3, num_generated=2), Work("old", 30, 0, 2, is_continued=True)]
    for name in BENCHMARK_POLICIES:
        grants = _plan(0, works, StepLimits(62, 8), name)
        assert grants == [Grant("old", 30), Grant("young", 30), Grant("short", 2)]


def test_prompts_are_bounded_only_beside_decodes() -> None:
    """The bound is there for the sake of the decodes; without any, the step is filled."""
    limits = StepLimits(100, 8, max_prefill_tokens=16)
    assert _plan(1, [Work("a", 50, 0, 1)], limits) == [Grant("d0", 1), Grant("a", 16)]
    assert _plan(0, [Work("a", 50, 0, 1)], limits) == [Grant("a", 50)]


def test_a_capped_prompt_leaves_its_rest_to_the_next() -> None:
    """A prompt that is cut for its transfer does not keep the budget from others."""
    works = [Work("a", 50, 0, 1, max_step_tokens=10), Work("b", 50, 0, 2)]
    assert _plan(0, works, StepLimits(40, 8)) == [Grant("a", 10), Grant("b", 30)]


@pytest.mark.parametrize("limits", [(0, 1, None), (1, 0, None), (8, 8, 0)])
def test_a_step_without_room_is_refused(limits: tuple[int, int, int | None]) -> None:
    """A limit of zero would never end a request."""
    with pytest.raises(ConfigError):
        StepLimits(*limits)


def test_nothing_to_do_is_an_empty_plan() -> None:
    """No grants, no error."""
    policy = Fcfs()
    queue: Queue = queue_of(policy, [], [], now=0.0)
    assert plan_step([], queue, StepLimits(8, 8), policy) == []
