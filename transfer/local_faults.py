"""Faults that can be ordered on a `LocalFabric`: what happens to the next writes and tags that match.

Each order applies to the next `num` writes (or tags sent alone) for which `when` holds, in the order of posting; orders that
are older go first. Nothing here is random, so that a failing test fails again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from transfer.transport import WriteRequest

Subject = TypeVar("Subject")


class FaultKind(StrEnum):
    """What goes wrong with one write."""

    LOSE = "lose"
    """Neither bytes nor tag arrive, though the write is reported done."""
    FAIL = "fail"
    """The write ends as failed; nothing arrives."""
    CORRUPT = "corrupt"
    """One bit is flipped on the way."""
    DUPLICATE_TAG = "duplicate_tag"
    """The tag is delivered twice."""
    DROP_TAG = "drop_tag"
    """The bytes arrive, the tag does not."""
    HOLD = "hold"
    """The write stays pending until `Faults.release`, then completes whole."""


@dataclass(frozen=True, slots=True, eq=False)
class Fault:
    """What was ordered for one write. `bit` counts from the payload's start and is used by CORRUPT only."""

    kind: FaultKind
    bit: int = 0

    @property
    def num_tags(self) -> int:
        """How often the write's tag is delivered."""
        return {FaultKind.DUPLICATE_TAG: 2, FaultKind.DROP_TAG: 0}.get(self.kind, 1)

    def corrupted(self, payload: bytes) -> bytes:
        """The bytes that arrive."""
        if self.kind is not FaultKind.CORRUPT:
            return payload
        changed = bytearray(payload)
        changed[self.bit // 8 % len(changed)] ^= 1 << self.bit % 8
        return bytes(changed)


def always(_: object) -> bool:
    """Matches every write and every tag."""
    return True


@dataclass(slots=True)
class _Order(Generic[Subject]):
    fault: Fault
    num_left: int
    when: Callable[[Subject], bool]


class Faults:
    """The orders that stand. Give them before the write is posted; `LocalFabric` asks once a write."""

    def __init__(self) -> None:
        self._write_orders: list[_Order[WriteRequest]] = []
        self._tag_orders: list[_Order[bytes]] = []
        self._is_holding = False

    def drop_write(self, num: int = 1, when: Callable[[WriteRequest], bool] = always) -> None:
        """The next writes vanish, bytes and tag, and are reported done."""
        self._write_orders.append(_Order(Fault(FaultKind.LOSE), num, when))

    def fail_write(self, num: int = 1, when: Callable[[WriteRequest], bool] = always) -> None:
        """The next writes end as FAILED."""
        self._write_orders.append(_Order(Fault(FaultKind.FAIL), num, when))

    def corrupt_write(self, num: int = 1, when: Callable[[WriteRequest], bool] = always, *, bit: int = 0) -> None:
        """The next writes arrive with one bit flipped; `bit` wraps around at the payload's end."""
        self._write_orders.append(_Order(Fault(FaultKind.CORRUPT, bit), num, when))

    def duplicate_tag(self, num: int = 1, when: Callable[[WriteRequest], bool] = always) -> None:
        """The tags of the next writes are delivered twice."""
        self._write_orders.append(_Order(Fault(FaultKind.DUPLICATE_TAG), num, when))

    def drop_tag(self, num: int = 1, when: Callable[[WriteRequest], bool] = always) -> None:
        """The next writes arrive without their tags."""
        self._write_orders.append(_Order(Fault(FaultKind.DROP_TAG), num, when))

    def drop_notification(self, num: int = 1, when: Callable[[bytes], bool] = always) -> None:
        """The next tags sent alone are lost."""
        self._tag_orders.append(_Order(Fault(FaultKind.DROP_TAG), num, when))

    def duplicate_notification(self, num: int = 1, when: Callable[[bytes], bool] = always) -> None:
        """The next tags sent alone are delivered twice."""
        self._tag_orders.append(_Order(Fault(FaultKind.DUPLICATE_TAG), num, when))

    def hold(self, num: int = 2**31, when: Callable[[WriteRequest], bool] = always) -> None:
        """Writes posted from now on stay pending until `release`."""
        self._is_holding = True
        self._write_orders.append(_Order(Fault(FaultKind.HOLD), num, when))

    def release(self) -> None:
        """Held writes complete at the next poll, and none is held any more."""
        self._is_holding = False
        self._write_orders = [order for order in self._write_orders if order.fault.kind is not FaultKind.HOLD]

    def for_write(self, request: WriteRequest) -> Fault | None:
        """Uses up the oldest order that matches this write."""
        return _use(self._write_orders, request)

    def num_copies_of_tag(self, tag: bytes) -> int:
        """How often a tag sent alone is delivered, using up the oldest order that matches it."""
        fault = _use(self._tag_orders, tag)
        return 1 if fault is None else fault.num_tags

    def is_held(self, fault: Fault | None) -> bool:
        """Whether a write with this fault must wait."""
        return self._is_holding and fault is not None and fault.kind is FaultKind.HOLD


def _use(orders: list[_Order[Subject]], subject: Subject) -> Fault | None:
    for order in orders:
        if order.when(subject):
            order.num_left -= 1
            if order.num_left == 0:
                orders.remove(order)
            return order.fault
    return None
