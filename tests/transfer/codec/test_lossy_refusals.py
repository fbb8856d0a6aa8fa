"""Lossy chunks that are not what was promised: refused by their field, with nothing written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import BadChunk
from protocol.wire_rule import LOSSLESS, WireCodec, WireRule
from tests.transfer.codec.pools import LAYOUT, UNTOUCHED, Crossing, cross, pool_of, rule_of
from transfer.codec.chunk import unpack, verify
from transfer.codec.digest import write_digest
from transfer.codec.format import HEADER_BYTES, ChunkHeader
from transfer.codec.pool_view import PoolView
from transfer.codec.registry import BY_NAME
from transfer.codec.tiers import TIER_4_BITS, TIER_16_BITS, uniform

CHANNEL = rule_of(WireCodec.CHANNEL)
MIXED = np.array([1, 6, 2, 6, 3, 4, 5, 6, 1], dtype=np.uint8)
LOSSY = [codec for codec in WireCodec if codec is not WireCodec.NATIVE]


def mixed() -> Crossing:
    """A chunk of `channel` with all tiers."""
    return cross(LAYOUT, WireCodec.CHANNEL, MIXED)


def refuse(one: Crossing, rule: WireRule, field: str, chunk: memoryview | None = None) -> None:
    """Asserts that `unpack` raises `BadChunk`, names `field` first, and leaves the pool alone."""
    pool = pool_of(LAYOUT, 8, seed=None)
    with pytest.raises(BadChunk) as caught:
        unpack(LAYOUT, one.identity, chunk or one.chunk, PoolView(pool, (5, 1, 2)), rule)
    assert caught.value.message.startswith(field)
    assert torch.equal(pool, torch.full_like(pool, UNTOUCHED))


@pytest.mark.parametrize("sent", list(WireCodec))
@pytest.mark.parametrize("promised", list(WireCodec))
def test_only_the_promised_codec_lands(sent: WireCodec, promised: WireCodec) -> None:
    """A chunk of another codec than the ticket's is refused: above all, nothing lossy serves a lossless request."""
    one = cross(LAYOUT, sent, uniform(9, min(BY_NAME[sent].tiers)))
    if sent is promised:
        assert verify(LAYOUT, one.identity, one.chunk, rule_of(promised)).codec.name is sent
    else:
        refuse(one, rule_of(promised), "codec")


def test_a_rule_that_is_not_given_is_lossless() -> None:
    """Whoever forgets the ticket's rule gets nothing lossy."""
    refuse(mixed(), LOSSLESS, "codec")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tier_counts": (0, 3, 1, 1, 1, 1, 3, 0)}, "tier counts"),
        ({"tier_counts": (1, 2, 1, 1, 1, 1, 2, 0)}, "tier counts"),
        ({"tier_counts": (0, 2, 1, 1, 1, 1, 2, 1)}, "tier counts"),
        ({"tier_counts": (0, 1, 2, 1, 1, 1, 3, 0)}, "scale bytes"),
        ({"tier_counts": (0, 2, 1, 2, 0, 1, 3, 0)}, "precision map"),
        ({"map_bytes": 4}, "map bytes"),
        ({"scale_bytes": 64}, "scale bytes"),
        ({"payload_bytes": 64}, "payload length"),
        ({"codec": 2}, "codec"),
        ({"codec": 9}, "codec"),
    ],
    ids=str,
)
def test_a_forged_header_is_refused(change: dict[str, Any], field: str) -> None:
    """Lengths, counts and codes that do not agree are refused even under a correct digest."""
    one = mixed()
    one.chunk[:HEADER_BYTES] = replace(ChunkHeader.from_bytes(one.chunk), **change).to_bytes()
    write_digest(one.chunk)
    refuse(one, CHANNEL, field)


@pytest.mark.parametrize("value", [0x11, 0x71, 0x60, 0xF6])
def test_a_forged_map_is_refused(value: int) -> None:
    """Tokens at other tiers than the counts say, or at tiers that are none, are refused even under a correct digest."""
    one = mixed()
    one.chunk[HEADER_BYTES] = value
    write_digest(one.chunk)
    refuse(one, CHANNEL, "precision map")


def test_what_follows_the_last_token_in_the_map_is_zero() -> None:
    """The odd half byte, and all padding, has one value only: two different chunks never mean the same."""
    one = mixed()
    one.chunk[HEADER_BYTES + 4] |= 0x60
    write_digest(one.chunk)
    refuse(one, CHANNEL, "precision map")
    other = mixed()
    other.chunk[HEADER_BYTES + 40] = 1
    write_digest(other.chunk)
    refuse(other, CHANNEL, "padding")


@pytest.mark.parametrize("codec", LOSSY)
@pytest.mark.parametrize("bits", [0x7C00, 0xFC00, 0x7E00])
def test_scales_that_no_sender_writes_are_refused(codec: WireCodec, bits: int) -> None:
    """Infinity and NaN among the parameters never reach a cache."""
    tiers = uniform(9, max(BY_NAME[codec].tiers))
    one = cross(LAYOUT, codec, tiers)
    one.chunk[HEADER_BYTES + 64 : HEADER_BYTES + 66] = bits.to_bytes(2, "little")
    write_digest(one.chunk)
    refuse(one, rule_of(codec), "minimum" if codec is WireCodec.CHANNEL else "scale")


def test_a_negative_step_is_refused() -> None:
    """Steps go up from the minimum."""
    one = cross(LAYOUT, WireCodec.SPECTRUM, uniform(9, TIER_4_BITS))
    one.chunk[HEADER_BYTES + 65] |= 0x80
    write_digest(one.chunk)
    refuse(one, rule_of(WireCodec.SPECTRUM), "scale")


def test_exact_values_that_no_sender_writes_are_refused() -> None:
    """Infinity among the 16-bit tokens never reaches a cache; nor does e4m3's NaN."""
    one = cross(LAYOUT, WireCodec.SPECTRUM, uniform(9, TIER_16_BITS))
    one.chunk[HEADER_BYTES + 64 : HEADER_BYTES + 66] = b"\x00\x7c"
    write_digest(one.chunk)
    refuse(one, rule_of(WireCodec.SPECTRUM), "16-bit tokens")
    other = cross(LAYOUT, WireCodec.FP8, uniform(9, 2))
    other.chunk[len(other.chunk) - 64] = 0xFF
    write_digest(other.chunk)
    refuse(other, rule_of(WireCodec.FP8), "8-bit values")


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_flipped_bit_is_refused(data: st.DataObject) -> None:
    """One bit flipped anywhere, header, map, scales, codes or padding, is a `BadChunk`."""
    one = mixed()
    bit = data.draw(st.integers(0, 8 * len(one.chunk) - 1))
    one.chunk[bit // 8] ^= 1 << bit % 8
    refuse(one, CHANNEL, "")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_truncated_chunk_is_refused(data: st.DataObject) -> None:
    """Fewer bytes than the header says are refused."""
    one = mixed()
    refuse(one, CHANNEL, "", one.chunk[: data.draw(st.integers(1, len(one.chunk) - 1))])


def test_reordered_segments_are_refused() -> None:
    """Two parts that changed places do not verify: the digest is over the order too."""
    one = mixed()
    start, end = HEADER_BYTES + 64, len(one.chunk) - 64
    first, last = bytes(one.chunk[start : start + 64]), bytes(one.chunk[end:])
    one.chunk[start : start + 64], one.chunk[end:] = last, first
    refuse(one, CHANNEL, "digest")


def test_sinks_are_as_precise_as_the_ticket_says() -> None:
    """A sink that does not have 16 bits is refused; tokens after the sinks may have any tier."""
    tiers = MIXED.copy()
    tiers[:3] = (1, 1, 6)
    rule = replace(CHANNEL, num_sinks=5)
    refuse(cross(LAYOUT, WireCodec.CHANNEL, tiers), rule, "precision map")
    later = cross(LAYOUT, WireCodec.CHANNEL, tiers, first=3)
    assert verify(LAYOUT, later.identity, later.chunk, rule).tiers.tolist() == tiers.tolist()


def test_tokens_of_fewer_than_8_bits_must_be_allowed() -> None:
    """A ticket without INT4 takes 8 and 16 bits only."""
    rule = replace(CHANNEL, allows_int4=False)
    refuse(mixed(), rule, "tier counts")
    high = cross(LAYOUT, WireCodec.CHANNEL, np.array([1, 2, 2], dtype=np.uint8))
    assert verify(LAYOUT, high.identity, high.chunk, rule).tiers.tolist() == [1, 2, 2]
