"""A line that stays sorted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.policies.spf import ShortestPromptFirst
from scheduling.waiting_line import WaitingLine
from scheduling.work import Work

STEPS = st.lists(
    st.tuples(st.sampled_from(["add", "remove", "replace"]), st.integers(0, 9), st.integers(1, 5)), max_size=60
)


@given(STEPS)
def test_it_is_always_what_sorting_gives(steps: list[tuple[str, int, int]]) -> None:
    """Against a plain dictionary that is sorted each time, whatever is added, removed and replaced."""
    key = ShortestPromptFirst().key
    line, plain = WaitingLine(key), dict[str, Work]()
    for kind, number, size in steps:
        work = Work(f"r{number}", size, 0, number)
        if kind == "add" and work.request_id not in plain:
            line.add(work)
            plain[work.request_id] = work
        elif kind == "remove":
            assert line.remove(work.request_id) == plain.pop(work.request_id, None)
        elif kind == "replace" and work.request_id in plain:
            line.replace(work)
            plain[work.request_id] = work
        assert list(line) == sorted(plain.values(), key=key)
        assert line.oldest == min(plain.values(), key=lambda one: one.arrival, default=None)
        assert len(line) == len(plain)


def test_nobody_stands_in_it_twice() -> None:
    """Adding again, or replacing one that is not there, is a mistake of the caller."""
    line = WaitingLine(ShortestPromptFirst().key)
    line.add(Work("a", 5, 0, 1))
    with pytest.raises(ValueError, match="a waits already"):
        line.add(Work("a", 6, 0, 1))
    with pytest.raises(ValueError, match="b does not wait"):
        line.replace(Work("b", 6, 0, 1))
    assert "a" in line
    assert "b" not in line


def test_who_goes_meanwhile_comes_no_more() -> None:
    """Whoever walks along the line may take out whom it has reached, or anybody else, and add others."""
    line = WaitingLine(lambda work: (work.arrival,))
    for number in range(5):
        line.add(Work(str(number), 9, 0, number))
    seen = []
    for work in line:
        seen.append(work.request_id)
        line.remove(work.request_id)
        line.remove("3")
        if work.request_id == "0":
            line.add(Work("late", 9, 0, 9))
    assert seen == ["0", "1", "2", "4"]
    assert [work.request_id for work in line] == ["late"]
