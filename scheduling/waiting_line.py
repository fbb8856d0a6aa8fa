"""Requests that hold no blocks, kept in the order of a policy: a step looks at the head and sorts nothing.

Keys must not change while a request waits; `replace` says that they have. Who may go is for the policy and the blocks to say.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator

from scheduling.work import Work

Key = tuple[float, ...]
"""The smallest goes first. Ends with the number of the request, so that no two are equal."""


class WaitingLine:
    """Works by `key`, and by arrival. Adding and removing take time in the logarithm of their number, but for moving memory."""

    def __init__(self, key: Callable[[Work], Key]) -> None:
        self._key = key
        self._works: dict[str, Work] = {}
        self._by_key: list[tuple[Key, str]] = []
        self._by_arrival: list[tuple[int, str]] = []

    def __len__(self) -> int:
        return len(self._works)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._works

    def __iter__(self) -> Iterator[Work]:
        """In the order of now, also if the line changes meanwhile: who was taken out comes no more, who was added not yet."""
        works = self._works
        return (works[request_id] for _, request_id in self._by_key[:] if request_id in works)

    @property
    def oldest(self) -> Work | None:
        """The one that came first; None when nobody waits."""
        return self._works[self._by_arrival[0][1]] if self._by_arrival else None

    def add(self, work: Work) -> None:
        """Raises `ValueError` for one that waits already."""
        if work.request_id in self._works:
            raise ValueError(f"{work.request_id} waits already")
        self._works[work.request_id] = work
        insort(self._by_key, (self._key(work), work.request_id))
        insort(self._by_arrival, (work.arrival, work.request_id))

    def remove(self, request_id: str) -> Work | None:
        """Takes one out; None if it does not wait."""
        work = self._works.pop(request_id, None)
        if work is not None:
            del self._by_key[bisect_left(self._by_key, (self._key(work), request_id))]
            del self._by_arrival[bisect_left(self._by_arrival, (work.arrival, request_id))]
        return work

    def replace(self, work: Work) -> None:
        """What is known of one that waits has changed: its prefix, its prediction. Raises `ValueError` if it does not wait."""
        if self.remove(work.request_id) is None:
            raise ValueError(f"{work.request_id} does not wait")
        self.add(work)
