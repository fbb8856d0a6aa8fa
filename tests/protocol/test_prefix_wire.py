"""Prefix events and snapshots as messages: the same comes out as went in, whole or in parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import kvferry_worker_pb2 as pb
from protocol.errors import BadRequest
from protocol.prefix import HASH_BYTES
from protocol.prefix_events import BlocksEvicted, BlocksStored, CacheCleared, EventBatch, PrefixSnapshot
from protocol.prefix_wire import SnapshotParts, events_from_wire, events_to_wire, snapshot_to_wire

HASHES = st.lists(st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES), max_size=9).map(tuple)
EVENTS = st.one_of(
    st.builds(BlocksStored, st.none() | st.binary(min_size=HASH_BYTES, max_size=HASH_BYTES), HASHES),
    st.builds(BlocksEvicted, HASHES),
    st.builds(CacheCleared),
)


@given(st.builds(EventBatch, st.integers(0, 2**40), st.lists(EVENTS, max_size=6).map(tuple)))
def test_events_come_out_as_they_went_in(batch: EventBatch) -> None:
    """Any batch survives the way through bytes."""
    message = pb.PrefixEvents.FromString(events_to_wire(batch).SerializeToString())
    assert events_from_wire(message) == batch


@given(st.builds(PrefixSnapshot, st.integers(0, 2**40), HASHES), st.integers(1, 4))
def test_a_snapshot_is_put_together_from_its_parts(snapshot: PrefixSnapshot, max_part_hashes: int) -> None:
    """However it is cut, the last part and no other completes it."""
    parts = list(snapshot_to_wire(snapshot, max_part_hashes))
    reader = SnapshotParts()
    taken = [reader.take(part) for part in parts]
    assert taken == [*[None] * (len(parts) - 1), snapshot]
    assert all(len(part.hashes) <= max_part_hashes * HASH_BYTES for part in parts)


def test_parts_without_a_beginning_are_dropped_and_another_beginning_starts_over() -> None:
    """What was lost is never taken for a whole snapshot."""
    names = tuple(bytes([number]) * HASH_BYTES for number in range(4))
    first, second = snapshot_to_wire(PrefixSnapshot(7, names), 2)
    reader = SnapshotParts()
    assert reader.take(second) is None
    assert reader.take(first) is None
    assert reader.take(first) is None
    assert reader.take(second) == PrefixSnapshot(7, names)
    assert reader.take(second) is None


def test_broken_messages_are_refused() -> None:
    """Names of another length, and events that are none."""
    with pytest.raises(BadRequest, match="16 bytes"):
        events_from_wire(pb.PrefixEvents(events=[pb.PrefixEvent(evicted=pb.PrefixEvicted(hashes=b"short"))]))
    with pytest.raises(BadRequest, match="no event"):
        events_from_wire(pb.PrefixEvents(events=[pb.PrefixEvent()]))
