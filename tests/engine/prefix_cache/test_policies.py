"""LRU and ARC against plain models, and what tells them apart."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.block_pool import BlockIds
from engine.prefix_cache.arc import ArcPolicy
from engine.prefix_cache.policy import POLICIES, EvictionPolicy, PrefixCachePolicy
from tests.engine.prefix_cache.reference import REFERENCES, ReferenceLru

NUM_BLOCKS = 6
NAMES = [bytes([number]) for number in range(14)]


class PolicyMachine(RuleBasedStateMachine):
    """Names that come in blocks that are free, are held, let go and leave, in any order: every choice is the plain model's,
    which knows names only.
    """

    policy: EvictionPolicy
    model: ReferenceLru

    @initialize(name=st.sampled_from(PrefixCachePolicy))
    def begin(self, name: PrefixCachePolicy) -> None:
        self.policy, self.model = POLICIES[name](NUM_BLOCKS), REFERENCES[name](NUM_BLOCKS)
        self.block_of: dict[bytes, int] = {}

    @rule(draw=st.data(), names=st.lists(st.sampled_from(NAMES), unique=True), is_let_go=st.booleans())
    def insert(self, draw: st.DataObject, names: list[bytes], is_let_go: bool) -> None:
        free = [*range(NUM_BLOCKS)]
        for block in self.block_of.values():
            free.remove(block)
        names = [name for name in names if name not in self.block_of][: len(free)]
        blocks = draw.draw(st.permutations(free))[: len(names)]
        self.block_of.update(zip(names, blocks, strict=True))
        self.policy.insert(np.array(blocks, np.intp), names)
        for name in names:
            self.model.insert(name)
        if is_let_go:
            self._let_go(names)

    @precondition(lambda self: self.model.idle)
    @rule(draw=st.data())
    def hold(self, draw: st.DataObject) -> None:
        names = draw.draw(st.lists(st.sampled_from(self.model.idle), unique=True))
        self.policy.hold(self.blocks(names))
        for name in names:
            self.model.hold(name)
            self.model.touch(name)

    @precondition(lambda self: self.model.held)
    @rule(draw=st.data())
    def touch(self, draw: st.DataObject) -> None:
        names = draw.draw(st.lists(st.sampled_from(self.model.held), unique=True))
        self.policy.touch(self.blocks(names))
        for name in names:
            self.model.touch(name)

    @precondition(lambda self: self.model.held)
    @rule(draw=st.data())
    def let_go(self, draw: st.DataObject) -> None:
        self._let_go(draw.draw(st.lists(st.sampled_from(self.model.held), unique=True)))

    def _let_go(self, names: list[bytes]) -> None:
        self.policy.let_go(self.blocks(names))
        for name in names:
            self.model.let_go(name)

    @rule()
    def evict(self) -> None:
        name = self.victim()
        assert name == self.model.victim()
        if name is not None:
            self._evict(name)

    @precondition(lambda self: self.model.idle)
    @rule(draw=st.data())
    def evict_another(self, draw: st.DataObject) -> None:
        self._evict(draw.draw(st.sampled_from(self.model.idle)))

    def _evict(self, name: bytes) -> None:
        self.policy.evict(self.block_of.pop(name), name)
        self.model.evict(name)

    @precondition(lambda self: self.model.held)
    @rule(draw=st.data())
    def forget(self, draw: st.DataObject) -> None:
        name = draw.draw(st.sampled_from(self.model.held))
        self.policy.forget(self.block_of.pop(name))
        self.model.forget(name)

    @precondition(lambda self: self.model.idle)
    @rule()
    def clear(self) -> None:
        self.policy.clear()
        self.model.clear()
        self.block_of.clear()

    @invariant()
    def they_agree(self) -> None:
        assert self.policy.idle_blocks() == set(self.blocks(self.model.idle).tolist())
        assert self.victim() == self.model.victim()
        if isinstance(self.policy, ArcPolicy):
            assert self.policy.num_ghosts <= 2 * NUM_BLOCKS

    def victim(self) -> bytes | None:
        block = self.policy.victim()
        return next((name for name, one in self.block_of.items() if one == block), None)

    def blocks(self, names: Iterable[bytes]) -> BlockIds:
        return np.array([self.block_of[name] for name in names], np.intp)


PolicyMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)
TestPolicyMachine = PolicyMachine.TestCase


def _use(policy: EvictionPolicy, cached: dict[bytes, int], name: bytes, num_blocks: int) -> bool:
    """One prompt of one block; whether it was found."""
    is_found = name in cached
    if is_found:
        policy.hold(np.array([cached[name]]))
    else:
        block = len(cached)
        if len(cached) == num_blocks:
            victim = policy.victim()
            assert victim is not None
            block = victim
            old = next(name for name, one in cached.items() if one == victim)
            policy.evict(cached.pop(old), old)
        policy.insert(np.array([block]), [name])
        cached[name] = block
    policy.let_go(np.array([cached[name]]))
    return is_found


@pytest.mark.parametrize(("name", "num_found"), [(PrefixCachePolicy.LRU, 0), (PrefixCachePolicy.ARC, 5)])
def test_arc_keeps_what_was_used_again_through_a_flood(name: PrefixCachePolicy, num_found: int) -> None:
    """Blocks that were used twice outlive twice as many as there is room for that come once; under LRU they do not."""
    policy, cached = POLICIES[name](10), dict[bytes, int]()
    popular = [b"p%d" % number for number in range(5)]
    for key in popular * 2:
        _use(policy, cached, key, 10)
    for number in range(20):
        _use(policy, cached, b"once%d" % number, 10)
    assert sum(_use(policy, cached, key, 10) for key in popular) == num_found
