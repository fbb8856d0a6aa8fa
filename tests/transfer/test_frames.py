"""Tags, byte for byte."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BadChunk, BadRequest
from protocol.ids import new_request_id
from transfer.frames import FRAME_BYTES, Frame, FrameKind

FRAMES = st.builds(
    Frame,
    kind=st.sampled_from(FrameKind),
    request_id=st.binary(min_size=16, max_size=16).map(bytes.hex),
    generation=st.integers(0, 2**64 - 1),
    chunk=st.integers(0, 2**32 - 1),
    slot=st.integers(0, 2**32 - 1),
    num_bytes=st.integers(0, 2**64 - 1),
)


@given(FRAMES)
def test_every_tag_survives_the_wire(frame: Frame) -> None:
    """What was written is read, at one length."""
    raw = frame.to_bytes()
    assert len(raw) == FRAME_BYTES
    assert Frame.from_bytes(raw) == frame


def test_the_layout_is_the_documented_one() -> None:
    """Each field lies at its offset, little-endian: an older reader depends on it."""
    raw = Frame(FrameKind.CREDIT, "0102030405060708090a0b0c0d0e0f10", 0x1122, 3, 4, 5).to_bytes()
    expected = b"KVT1" + (4).to_bytes(4, "little") + bytes(range(1, 17)) + (0x1122).to_bytes(8, "little")
    expected += (3).to_bytes(4, "little") + (4).to_bytes(4, "little") + (5).to_bytes(8, "little") + bytes(8)
    assert raw == expected


@given(FRAMES, st.integers(0, 7), st.integers(1, 255))
def test_a_foreign_magic_or_kind_is_refused(frame: Frame, place: int, change: int) -> None:
    """Of magic and kind no byte may differ, unless the kind becomes another that exists."""
    raw = bytearray(frame.to_bytes())
    raw[place] ^= change
    if place >= 4 and int.from_bytes(raw[4:8], "little") in {kind.value for kind in FrameKind}:
        return
    with pytest.raises(BadChunk):
        Frame.from_bytes(bytes(raw))


@pytest.mark.parametrize("raw", [b"", b"KVT1", bytes(FRAME_BYTES), bytes(FRAME_BYTES + 1)])
def test_anything_else_is_refused(raw: bytes) -> None:
    """Neither a short, nor a long, nor an empty tag is taken for one."""
    with pytest.raises(BadChunk):
        Frame.from_bytes(raw)


def test_an_id_that_is_none_cannot_be_sent() -> None:
    """A request id that is not 32 hexadecimal digits never becomes a tag."""
    with pytest.raises(BadRequest):
        Frame(FrameKind.RENEW, new_request_id()[:-1], 1).to_bytes()
