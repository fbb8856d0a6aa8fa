"""LRU and ARC against plain models, and what tells them apart."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from engine.prefix_cache.arc import ArcPolicy
from engine.prefix_cache.policy import POLICIES, EvictionPolicy, PrefixCachePolicy
from tests.engine.prefix_cache.reference import REFERENCES, ReferenceLru

NUM_BLOCKS = 5
KEYS = [bytes([number]) for number in range(14)]


class PolicyMachine(RuleBasedStateMachine):
    """Keys that come, are held, let go and leave, in any order: every choice is the plain model's."""

    policy: EvictionPolicy
    model: ReferenceLru

    @initialize(name=st.sampled_from(PrefixCachePolicy))
    def begin(self, name: PrefixCachePolicy) -> None:
        self.policy, self.model = POLICIES[name](NUM_BLOCKS), REFERENCES[name](NUM_BLOCKS)

    @rule(key=st.sampled_from(KEYS), is_let_go=st.booleans())
    def insert(self, key: bytes, is_let_go: bool) -> None:
        if key in self.model.idle or key in self.model.held:
            return
        self.policy.insert([key])
        self.model.insert(key)
        if is_let_go:
            self.policy.let_go([key])
            self.model.let_go(key)

    @precondition(lambda self: self.model.idle)
    @rule(draw=st.data())
    def hold(self, draw: st.DataObject) -> None:
        keys = draw.draw(st.lists(st.sampled_from(self.model.idle), unique=True))
        self.policy.hold(keys)
        for key in keys:
            self.model.hold(key)
            self.model.touch(key)

    @precondition(lambda self: self.model.held)
    @rule(draw=st.data())
    def touch(self, draw: st.DataObject) -> None:
        keys = draw.draw(st.lists(st.sampled_from(self.model.held), unique=True))
        self.policy.touch(keys)
        for key in keys:
            self.model.touch(key)

    @precondition(lambda self: self.model.held)
    @rule(draw=st.data())
    def let_go(self, draw: st.DataObject) -> None:
        keys = draw.draw(st.lists(st.sampled_from(self.model.held), unique=True))
        self.policy.let_go(keys)
        for key in keys:
            self.model.let_go(key)

    @rule()
    def evict(self) -> None:
        victim = self.policy.victim()
        assert victim == self.model.victim()
        if victim is not None:
            self.policy.evict(victim)
            self.model.evict(victim)

    @precondition(lambda self: self.model.idle)
    @rule(draw=st.data())
    def evict_another(self, draw: st.DataObject) -> None:
        key = draw.draw(st.sampled_from(self.model.idle))
        self.policy.evict(key)
        self.model.evict(key)

    @precondition(lambda self: self.model.held)
    @rule(draw=st.data())
    def forget(self, draw: st.DataObject) -> None:
        key = draw.draw(st.sampled_from(self.model.held))
        self.policy.forget(key)
        self.model.forget(key)

    @precondition(lambda self: self.model.idle)
    @rule()
    def clear(self) -> None:
        self.policy.clear()
        self.model.clear()

    @invariant()
    def they_agree(self) -> None:
        assert self.policy.idle_keys() == set(self.model.idle)
        assert self.policy.victim() == self.model.victim()
        if isinstance(self.policy, ArcPolicy):
            assert self.policy.num_ghosts <= 2 * NUM_BLOCKS


PolicyMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=60, deadline=None)
TestPolicyMachine = PolicyMachine.TestCase


def _use(policy: EvictionPolicy, cached: set[bytes], key: bytes, num_blocks: int) -> bool:
    """One prompt of one block; whether it was found."""
    is_found = key in cached
    if is_found:
        policy.hold([key])
    else:
        if len(cached) == num_blocks:
            victim = policy.victim()
            assert victim is not None
            policy.evict(victim)
            cached.remove(victim)
        policy.insert([key])
        cached.add(key)
    policy.let_go([key])
    return is_found


@pytest.mark.parametrize(("name", "num_found"), [(PrefixCachePolicy.LRU, 0), (PrefixCachePolicy.ARC, 5)])
def test_arc_keeps_what_was_used_again_through_a_flood(name: PrefixCachePolicy, num_found: int) -> None:
    """Blocks that were used twice outlive twice as many as there is room for that come once; under LRU they do not."""
    policy, cached = POLICIES[name](10), set[bytes]()
    popular = [b"p%d" % number for number in range(5)]
    for key in popular * 2:
        _use(policy, cached, key, 10)
    for number in range(20):
        _use(policy, cached, b"once%d" % number, 10)
    assert sum(_use(policy, cached, key, 10) for key in popular) == num_found
