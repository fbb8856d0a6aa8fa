"""Slots as numbers: each in exactly one place."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from protocol.errors import OutOfSlots
from transfer.slots import SlotPool

NUM_SLOTS = 6


class SlotMachine(RuleBasedStateMachine):
    """Lends, quarantines and frees at random beside a model of two dictionaries."""

    owners = Bundle("owners")

    def __init__(self) -> None:
        super().__init__()
        self.slots = SlotPool(NUM_SLOTS)
        self.lent: dict[int, tuple[int, ...]] = {}
        self.quarantined: dict[int, tuple[int, ...]] = {}
        self.next_owner = 0

    @property
    def num_free(self) -> int:
        return NUM_SLOTS - sum(map(len, (*self.lent.values(), *self.quarantined.values())))

    @rule(target=owners, num_wanted=st.integers(1, NUM_SLOTS + 2), num_least=st.integers(1, 3))
    def lend(self, num_wanted: int, num_least: int) -> int:
        owner, num_free = self.next_owner, self.num_free
        self.next_owner += 1
        if num_free < num_least:
            with pytest.raises(OutOfSlots):
                self.slots.lend(owner, num_wanted, num_least=num_least)
            return -1
        slots = self.slots.lend(owner, num_wanted, num_least=num_least)
        assert len(slots) == min(num_wanted, num_free)
        self.lent[owner] = slots
        return owner

    @rule(owner=owners)
    def quarantine(self, owner: int) -> None:
        if owner not in self.lent:
            with pytest.raises(KeyError):
                self.slots.quarantine(owner)
            return
        self.slots.quarantine(owner)
        self.quarantined[owner] = self.lent.pop(owner)

    @rule(owner=consumes(owners))
    def free(self, owner: int) -> None:
        if owner in self.lent or owner in self.quarantined:
            self.slots.free(owner)
            self.lent.pop(owner, None)
            self.quarantined.pop(owner, None)
        with pytest.raises(KeyError):
            self.slots.free(owner)

    @rule(owner=owners)
    def lend_twice(self, owner: int) -> None:
        if owner in self.lent or owner in self.quarantined:
            with pytest.raises((KeyError, OutOfSlots)):
                self.slots.lend(owner, 1)

    @invariant()
    def every_slot_is_in_one_place(self) -> None:
        self.slots.check_integrity()
        assert self.slots.num_free == self.num_free
        assert self.slots.num_quarantined == sum(map(len, self.quarantined.values()))


TestSlotMachine = SlotMachine.TestCase
TestSlotMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)


def test_nothing_is_lent_when_too_little_is_free() -> None:
    """A refused request changes nothing."""
    slots = SlotPool(2)
    slots.lend(1, 1)
    with pytest.raises(OutOfSlots):
        slots.lend(2, 2, num_least=2)
    assert slots.num_free == 1
    slots.check_integrity()
