"""What a worker has to tell of its prefix cache and has not sent yet: bounded, and a part at a time, so that tokens pass.

Knows nothing of streams. One loop uses it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from protocol import kvferry_worker_pb2 as pb

MAX_UNSENT_BYTES = 32 << 20
"""The largest snapshot, and as much again of what happened while it was sent."""
MAX_TOGETHER_BYTES = 1 << 20
"""A delivery takes one message at least, and no more once it has so much of them."""


class UnsentNews:
    """Messages in order. What finds no room is dropped as a whole; the router sees that numbers are missing, and asks anew."""

    def __init__(self, max_bytes: int = MAX_UNSENT_BYTES) -> None:
        self._max_bytes = max_bytes
        self._messages: deque[tuple[pb.PrefixNews, int]] = deque()
        self._num_bytes = 0

    def __bool__(self) -> bool:
        """Whether there is something to send."""
        return bool(self._messages)

    def add(self, messages: Sequence[pb.PrefixNews]) -> bool:
        """Adds messages that belong together; false, and none of them, if there is no room."""
        sized = [(one, one.ByteSize()) for one in messages]
        num_bytes = sum(size for _, size in sized)
        if self._num_bytes + num_bytes > self._max_bytes:
            return False
        self._messages.extend(sized)
        self._num_bytes += num_bytes
        return True

    def move_to(self, delivery: pb.Delivery) -> None:
        """Takes the next messages out, as many as may go together, and adds them to `delivery`."""
        num_moved = 0
        while self._messages and num_moved < MAX_TOGETHER_BYTES:
            message, size = self._messages.popleft()
            delivery.prefix.append(message)
            num_moved += size
        self._num_bytes -= num_moved
