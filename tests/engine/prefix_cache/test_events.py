"""The event log: numbered, bounded, honest about what it lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.prefix_cache.events import EventLog
from protocol.errors import ConfigError
from protocol.prefix_events import BlocksEvicted, BlocksStored, CacheCleared, PrefixEvent

names = st.lists(st.binary(min_size=1, max_size=1), max_size=4).map(tuple)
events = st.one_of(st.builds(BlocksStored, st.none(), names), st.builds(BlocksEvicted, names), st.builds(CacheCleared))


@given(st.lists(events, max_size=20), st.integers(1, 15), st.integers(-2, 25))
def test_a_reader_gets_all_or_is_told(happened: list[PrefixEvent], max_hashes: int, number: int) -> None:
    """From any number on the log gives every event, or none and says so; it never grows beyond its bound."""
    log = EventLog(max_hashes)
    for event in happened:
        log.append(event)
    assert log.next_number == len(happened)
    batch = log.since(number)
    if batch is not None:
        assert (batch.first_number, batch.next_number) == (number, len(happened))
        assert list(batch.events) == happened[number:]
        assert sum(1 + len(getattr(event, "hashes", ())) for event in batch.events) <= max_hashes
    elif 0 <= number <= len(happened):
        assert sum(1 + len(getattr(event, "hashes", ())) for event in happened[number:]) > max_hashes


def test_a_log_has_room() -> None:
    """A log without room would lose every event."""
    with pytest.raises(ConfigError):
        EventLog(0)
