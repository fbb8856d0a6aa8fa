"""Step budgets, admission and victims."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import ConfigError
from scheduling.admission import choose_victim, has_headroom
from scheduling.budget import Grant, StepLimits, plan_step
from scheduling.orders import ORDERS
from scheduling.work import Work


def _decoding(numbers: range) -> list[Work]:
    return [Work(f"d{number}", 10, 9, number) for number in numbers]


WORKS = st.lists(st.integers(1, 500), max_size=20).map(
    lambda sizes: [Work(f"p{number}", size + 5, 5, number) for number, size in enumerate(sizes)]
)


@given(st.integers(0, 20), WORKS, st.integers(1, 300), st.integers(1, 30))
def test_a_step_never_exceeds_its_limits(
    num_decoding: int, prefilling: list[Work], tokens: int, sequences: int
) -> None:
    """Tokens and sequences stay within the limits, each sequence appears once, and decodes come first."""
    decoding = _decoding(range(num_decoding))
    grants = plan_step(decoding, prefilling, StepLimits(tokens, sequences))
    assert sum(grant.num_tokens for grant in grants) <= tokens
    assert len(grants) <= sequences
    assert len({grant.request_id for grant in grants}) == len(grants)
    num_decodes = min(num_decoding, tokens, sequences)
    assert grants[:num_decodes] == [Grant(work.request_id, 1) for work in decoding[:num_decodes]]


@given(WORKS, st.integers(1, 300))
def test_no_budget_is_left_while_a_prefill_needs_it(prefilling: list[Work], tokens: int) -> None:
    """All tokens of the budget are granted, or all prefills are complete."""
    grants = plan_step([], prefilling, StepLimits(tokens, 100))
    num_wanted = sum(work.num_uncached for work in prefilling)
    assert sum(grant.num_tokens for grant in grants) == min(tokens, num_wanted)


def test_a_prefill_is_cut_where_the_budget_ends() -> None:
    """Decodes take one token each, the first prefill the rest, the second waits."""
    grants = plan_step(_decoding(range(2)), [Work("a", 50, 0, 3), Work("b", 50, 0, 4)], StepLimits(20, 8))
    assert grants == [Grant("d0", 1), Grant("d1", 1), Grant("a", 18)]


def test_a_step_without_room_is_refused() -> None:
    """A limit of zero would never end a request."""
    with pytest.raises(ConfigError):
        StepLimits(0, 1)


def test_the_youngest_is_the_victim() -> None:
    """So that the oldest always gets on; nobody is chosen among none."""
    assert choose_victim([Work("a", 9, 8, 5), Work("b", 9, 8, 7), Work("c", 9, 8, 6)]) == Work("b", 9, 8, 7)
    assert choose_victim([]) is None


def test_headroom_is_kept_for_those_that_run() -> None:
    """One block for each of them stays free."""
    assert has_headroom(4, 10, 6)
    assert not has_headroom(5, 10, 6)


def test_fcfs_goes_by_arrival() -> None:
    """Neither length nor progress matters."""
    works = [Work("a", 1, 0, 3), Work("b", 99, 0, 1), Work("c", 5, 4, 2)]
    ordered = sorted(works, key=lambda work: ORDERS["fcfs"](work, 0.0))
    assert [work.request_id for work in ordered] == ["b", "c", "a"]
