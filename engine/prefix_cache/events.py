"""The last events of a prefix cache, for whoever follows it. One thread uses a log. Knows nothing of its readers."""

from __future__ import annotations

from collections import deque
from itertools import islice

from protocol.errors import ConfigError
from protocol.prefix_events import BlocksEvicted, BlocksStored, EventBatch, PrefixEvent

DEFAULT_MAX_HASHES = 65_536


class EventLog:
    """Keeps the latest events that together name at most `max_hashes` blocks, an event counting for one more.

    A reader that fell behind further than that takes a snapshot of the cache instead.
    """

    def __init__(self, max_hashes: int = DEFAULT_MAX_HASHES) -> None:
        if max_hashes < 1:
            raise ConfigError(f"an event log needs room for at least one name, got {max_hashes}")
        self._max_hashes = max_hashes
        self._events: deque[PrefixEvent] = deque()
        self._weight = 0
        self._first_number = 0

    @property
    def next_number(self) -> int:
        """The number of the event to come. It also changes whenever what can be found in the cache does."""
        return self._first_number + len(self._events)

    def append(self, event: PrefixEvent) -> None:
        """Numbers an event, and drops the oldest ones that have no room any more."""
        self._events.append(event)
        self._weight += _weight(event)
        while self._weight > self._max_hashes and self._events:
            self._weight -= _weight(self._events.popleft())
            self._first_number += 1

    def since(self, number: int) -> EventBatch | None:
        """All events from `number` on; None if one of them is gone, or if there was never one: then take a snapshot."""
        if not self._first_number <= number <= self.next_number:
            return None
        return EventBatch(number, tuple(islice(self._events, number - self._first_number, None)))


def _weight(event: PrefixEvent) -> int:
    return 1 + (len(event.hashes) if isinstance(event, BlocksStored | BlocksEvicted) else 0)
