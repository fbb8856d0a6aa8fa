"""Events and snapshots of a prefix cache to protobuf messages and back. Reading a message validates it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from protocol import kvferry_worker_pb2 as pb
from protocol.errors import BadRequest
from protocol.prefix import HASH_BYTES
from protocol.prefix_events import (
    BlocksEvicted,
    BlocksStored,
    CacheCleared,
    EventBatch,
    PrefixEvent,
    PrefixSnapshot,
)

MAX_PART_HASHES = 65_536
"""Names in one message, 1 MiB: larger snapshots come in parts."""


def news_to_wire(news: PrefixSnapshot | EventBatch) -> list[pb.PrefixNews]:
    """The messages of what a worker tells, which belong together."""
    if isinstance(news, EventBatch):
        return [pb.PrefixNews(events=events_to_wire(news))]
    return [pb.PrefixNews(snapshot=part) for part in snapshot_to_wire(news)]


def events_to_wire(batch: EventBatch) -> pb.PrefixEvents:
    """The message of a batch of events."""
    return pb.PrefixEvents(first_number=batch.first_number, events=map(_event_to_wire, batch.events))


def events_from_wire(message: pb.PrefixEvents) -> EventBatch:
    """The batch that a message carries. Raises `BadRequest` for an event that this version does not know."""
    return EventBatch(message.first_number, tuple(map(_event_from_wire, message.events)))


def snapshot_to_wire(
    snapshot: PrefixSnapshot, max_part_hashes: int = MAX_PART_HASHES
) -> Iterator[pb.PrefixSnapshotPart]:
    """The messages of a snapshot, at least one."""
    starts = range(0, max(1, len(snapshot.hashes)), max_part_hashes)
    for start in starts:
        yield pb.PrefixSnapshotPart(
            next_number=snapshot.next_number,
            hashes=b"".join(snapshot.hashes[start : start + max_part_hashes]),
            is_first=start == 0,
            is_last=start == starts[-1],
        )


class NewsReader:
    """Reads one worker's news."""

    def __init__(self) -> None:
        self._parts = SnapshotParts()

    def take(self, message: pb.PrefixNews) -> PrefixSnapshot | EventBatch | None:
        """What a message tells; None of a snapshot that is not complete. Raises `BadRequest` for what this version does not
        know.
        """
        match message.WhichOneof("what"):
            case "events":
                return events_from_wire(message.events)
            case "snapshot":
                return self._parts.take(message.snapshot)
            case other:
                raise BadRequest(f"a prefix cache has no news {other}")


class SnapshotParts:
    """Puts a snapshot together as its parts come."""

    def __init__(self) -> None:
        self._hashes: list[bytes] | None = None

    def take(self, part: pb.PrefixSnapshotPart) -> PrefixSnapshot | None:
        """The snapshot, with its last part. A part whose predecessors were lost is dropped. Raises `BadRequest`."""
        if part.is_first:
            self._hashes = []
        if self._hashes is None:
            return None
        self._hashes.extend(_split(part.hashes))
        if not part.is_last:
            return None
        hashes, self._hashes = self._hashes, None
        return PrefixSnapshot(part.next_number, tuple(hashes))


def _event_to_wire(event: PrefixEvent) -> pb.PrefixEvent:
    if isinstance(event, BlocksStored):
        return pb.PrefixEvent(stored=pb.PrefixStored(parent=event.parent or b"", hashes=b"".join(event.hashes)))
    if isinstance(event, BlocksEvicted):
        return pb.PrefixEvent(evicted=pb.PrefixEvicted(hashes=b"".join(event.hashes)))
    return pb.PrefixEvent(cleared=pb.PrefixCleared())


def _event_from_wire(message: pb.PrefixEvent) -> PrefixEvent:
    match message.WhichOneof("what"):
        case "stored":
            parents: Iterable[bytes] = _split(message.stored.parent)
            return BlocksStored(next(iter(parents), None), tuple(_split(message.stored.hashes)))
        case "evicted":
            return BlocksEvicted(tuple(_split(message.evicted.hashes)))
        case "cleared":
            return CacheCleared()
        case other:
            raise BadRequest(f"a prefix cache tells of no event {other}")


def _split(joined: bytes) -> list[bytes]:
    if len(joined) % HASH_BYTES:
        raise BadRequest(f"names of blocks have {HASH_BYTES} bytes each, got {len(joined)} in all")
    return [joined[start : start + HASH_BYTES] for start in range(0, len(joined), HASH_BYTES)]
