"""The slots of an arena as numbers: which are free, lent or in quarantine. Knows nothing of memory."""

from __future__ import annotations

from collections import deque

from protocol.errors import OutOfSlots


class SlotPool:
    """Lends slots to owners, each slot to one at a time. An owner is any number that its caller never uses twice.

    A quarantined slot is not free: a write that nobody waits for any more may still land in it.
    """

    def __init__(self, num_slots: int) -> None:
        self.num_slots = num_slots
        self._free = deque(range(num_slots))
        self._lent: dict[int, tuple[int, ...]] = {}
        self._quarantined: dict[int, tuple[int, ...]] = {}

    @property
    def num_free(self) -> int:
        """Slots that can be lent now."""
        return len(self._free)

    @property
    def num_quarantined(self) -> int:
        """Slots that wait for their writer to be quiet."""
        return sum(map(len, tuple(self._quarantined.values())))  # other threads ask

    def lend(self, owner: int, num_wanted: int, *, num_least: int = 1) -> tuple[int, ...]:
        """Lends up to `num_wanted` slots. Raises, lending nothing, `OutOfSlots` when fewer than `num_least` are free and
        `KeyError` when the owner has some already.
        """
        if len(self._free) < num_least:
            raise OutOfSlots(f"{len(self._free)} of {self.num_slots} slots are free, {num_least} are needed")
        if owner in self._lent or owner in self._quarantined:
            raise KeyError(f"owner {owner} has slots already")
        slots = tuple(self._free.popleft() for _ in range(min(num_wanted, len(self._free))))
        self._lent[owner] = slots
        return slots

    def quarantine(self, owner: int) -> None:
        """Keeps an owner's slots out of use until `free`."""
        self._quarantined[owner] = self._lent.pop(owner)

    def free(self, owner: int) -> None:
        """Takes an owner's slots back, lent or in quarantine. Raises `KeyError` if it has none: exactly once."""
        slots = self._lent.pop(owner) if owner in self._lent else self._quarantined.pop(owner)
        self._free.extend(slots)

    def check_integrity(self) -> None:
        """Raises `RuntimeError` unless every slot is in exactly one place."""
        places = [*self._free]
        for slots in (*self._lent.values(), *self._quarantined.values()):
            places.extend(slots)
        if sorted(places) != list(range(self.num_slots)):
            raise RuntimeError(f"slots are lost or doubled: {sorted(places)} of {self.num_slots}")
