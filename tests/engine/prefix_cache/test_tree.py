"""The tree of cached blocks against a plain dict."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from engine.prefix_cache.tree import NONE, BlockTree

NUM_BLOCKS = 8


@given(data=st.data(), num_steps=st.integers(0, 40))
def test_blocks_come_and_leaves_go(data: st.DataObject, num_steps: int) -> None:
    """Each is found below its predecessor while it is there, and only there."""
    tree, parents = BlockTree(NUM_BLOCKS), dict[int, int]()
    for _ in range(num_steps):
        leaves = [block for block in parents if block not in parents.values()]
        free = [block for block in range(NUM_BLOCKS) if block not in parents]
        if free and (not leaves or data.draw(st.booleans())):
            block = data.draw(st.sampled_from(free))
            parents[block] = data.draw(st.sampled_from([NONE, *(one for one in parents if one != block)]))
            tree.add(block, parents[block])
        else:
            block = data.draw(st.sampled_from(leaves))
            tree.remove_leaf(block)
            del parents[block]
        for block in range(NUM_BLOCKS):
            children = {one for one, parent in parents.items() if parent == block}
            assert set(tree.children(block)) == children
            assert tree.child(block) in (children or {NONE})
            assert tree.parent(block) == parents.get(block, NONE)
    tree.clear()
    assert all(tree.parent(block) == tree.child(block) == NONE for block in range(NUM_BLOCKS))
