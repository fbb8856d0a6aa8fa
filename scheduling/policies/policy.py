"""What a policy is, and the form that most have: a key for every request, of which the smallest goes first."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from scheduling.waiting_line import Key, WaitingLine
from scheduling.work import Grant, Work


@dataclass(frozen=True, slots=True)
class Queue:
    """What there is to choose from: requests that hold no blocks, in a line by the policy's `key`; prompts that hold blocks and
    are read; the time (seconds).
    """

    waiting: WaitingLine
    prefilling: Sequence[Work]
    now: float


@dataclass(frozen=True, slots=True)
class Room:
    """What a step has left for prompts: new tokens, and sequences."""

    num_tokens: int
    num_sequences: int


class Policy(Protocol):
    """Decides who goes next. `divide` is asked once a step and may remember; the others change nothing."""

    def key(self, work: Work) -> Key:
        """The place of a request in the line. It does not change while the request waits."""
        ...

    def order(self, queue: Queue) -> Iterator[Work]:
        """All that wait, in the order in which they are looked at for blocks; the first may go meanwhile."""
        ...

    def divide(self, queue: Queue, room: Room) -> list[Grant]:
        """Grants for `queue.prefilling`: one at most for each, never more than `room`, and none of it left while somebody
        could use it.
        """
        ...

    def overtaken_for_s(self, work: Work) -> float:
        """Requests that come later than so many seconds after `work` never go before it; infinite: that is not promised."""
        ...


class KeyPolicy(ABC):
    """Whoever has the smallest key goes first, for blocks and for the tokens of a step alike."""

    @abstractmethod
    def key(self, work: Work) -> Key:
        """As `Policy.key`."""

    @abstractmethod
    def overtaken_for_s(self, work: Work) -> float:
        """As `Policy.overtaken_for_s`."""

    def order(self, queue: Queue) -> Iterator[Work]:
        """As `Policy.order`."""
        return iter(queue.waiting)

    def divide(self, queue: Queue, room: Room) -> list[Grant]:
        """As `Policy.divide`: each as much as it may take, until the room is used up."""
        return fill(sorted(queue.prefilling, key=self.key), room)


def fill(ordered: Iterable[Work], room: Room) -> list[Grant]:
    """Grants in the given order, each as much as one step may run of it. The last is cut where the room ends."""
    grants: list[Grant] = []
    num_left = room.num_tokens
    for work in ordered:
        num_tokens = min(work.num_next, num_left)
        if num_tokens < 1 or len(grants) >= room.num_sequences:
            break
        grants.append(Grant(work.request_id, num_tokens))
        num_left -= num_tokens
    return grants
