"""The order of idle blocks against a plain list, with searches that find a few at a time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.prefix_cache import idle_order
from engine.prefix_cache.idle_order import IdleOrder

NUM_BLOCKS = 12


@given(data=st.data(), num_steps=st.integers(0, 60))
def test_the_first_is_the_one_that_came_first(data: st.DataObject, num_steps: int) -> None:
    """However blocks come, go and return, whether a search found them or not."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idle_order, "MIN_SEARCHED", 2)
        order, plain = IdleOrder(NUM_BLOCKS), list[int]()
        for _ in range(num_steps):
            others = [block for block in range(NUM_BLOCKS) if block not in plain]
            step = data.draw(st.sampled_from(["add", "remove", "take the first", "clear"] if plain else ["add"]))
            if step == "add":
                blocks = data.draw(st.permutations(others))[: data.draw(st.integers(0, len(others)))]
                order.add(np.array(blocks, np.intp))
                plain += blocks
            elif step == "remove":
                blocks = data.draw(st.lists(st.sampled_from(plain), unique=True))
                order.remove(np.array(blocks, np.intp))
                plain = [block for block in plain if block not in blocks]
            elif step == "take the first":
                order.remove_one(plain.pop(0))
            else:
                order.clear()
                plain.clear()
            assert order.first() == (plain[0] if plain else None)
            assert (len(order), order.blocks()) == (len(plain), set(plain))


def test_a_search_serves_many_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10,000 idle blocks taken one by one, a search finds a sixteenth: some dozens of searches are enough, not thousands."""
    order, num_searches = IdleOrder(10_000), 0
    search = order._search

    def counted() -> None:
        nonlocal num_searches
        num_searches += 1
        search()

    monkeypatch.setattr(order, "_search", counted)
    order.add(np.random.default_rng(0).permutation(10_000))
    while (block := order.first()) is not None:
        order.remove_one(block)
    assert num_searches < 60
