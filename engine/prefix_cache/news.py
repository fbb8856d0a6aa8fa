"""What happens in a prefix cache, told to whoever follows it: all that is in it first, then its events in order.

Knows neither what a follower does with it nor how it gets there.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from engine.prefix_cache.cache import PrefixCache
from protocol.prefix_events import EventBatch, PrefixSnapshot

PrefixDelivery = Callable[[PrefixSnapshot | EventBatch], None]

MAX_SNAPSHOT_HASHES = 1 << 20
"""Of more, a snapshot names the first, which can be found without the others: 16 MiB, and as much as a router keeps."""


@dataclass(slots=True)
class _Follower:
    """`next_number` is the event that it was not told yet, None before its snapshot."""

    deliver: PrefixDelivery
    next_number: int | None = None


class PrefixNews:
    """The followers of `cache`, by router. The step thread, which uses the cache, calls `publish`; any thread the others."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._lock = threading.Lock()
        self._followers: dict[str, _Follower] = {}
        self._num_new = 0
        self._next_number = cache.events.next_number

    def follow(self, router_id: str, deliver: PrefixDelivery) -> None:
        """From the next `publish` on a router is told of the cache, beginning with a snapshot; whom it had followed with
        before is told no more. `deliver` is called on the step thread and must not block.
        """
        with self._lock:
            self._followers[router_id] = _Follower(deliver)
            self._num_new += 1

    def unfollow(self, router_id: str, deliver: PrefixDelivery) -> None:
        """Ends it, unless another `deliver` has taken its place."""
        with self._lock:
            follower = self._followers.get(router_id)
            if follower is not None and follower.deliver == deliver:
                del self._followers[router_id]

    def publish(self) -> None:
        """Tells each follower what it was not told yet. One that fell behind further than the log gets a snapshot again."""
        events = self._cache.events
        next_number = events.next_number
        if next_number == self._next_number and not self._num_new:
            return
        with self._lock:
            self._num_new = 0
            followers = [*self._followers.values()]
        self._next_number = next_number
        snapshot: PrefixSnapshot | None = None
        for one in followers:
            batch = events.since(one.next_number) if one.next_number is not None else None
            if batch is None:
                snapshot = snapshot or self._snapshot()
                one.deliver(snapshot)
                one.next_number = snapshot.next_number
            elif batch.events:
                one.deliver(batch)
                one.next_number = batch.next_number

    def _snapshot(self) -> PrefixSnapshot:
        whole = self._cache.snapshot()
        return PrefixSnapshot(whole.next_number, whole.hashes[:MAX_SNAPSHOT_HASHES])
