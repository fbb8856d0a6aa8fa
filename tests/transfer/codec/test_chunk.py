"""Chunks: exact sizes, round trips between any two pools, and refusal of everything that is not the expected chunk."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import BadChunk, ConfigError, StaleTicket, TransferError
from protocol.layout import KvDtype, KvLayout, wire_dtype
from tests.transfer.codec.pools import LAYOUT, REQUEST_ID, UNTOUCHED, identity_of, pool_of, slot_for, tokens_of
from transfer.codec.chunk import chunk_bytes, max_tokens_per_slot, native_plan, pack, unpack, verify
from transfer.codec.digest import write_digest
from transfer.codec.format import HEADER_BYTES, ChunkHeader, ChunkIdentity
from transfer.codec.pool_view import PoolView

GOLDEN = Path(__file__).parent / "golden_chunk.hex"
BLOCKS = (5, 1, 2, 7)


def packed(identity: ChunkIdentity) -> tuple[memoryview, torch.Tensor]:
    """A chunk of `LAYOUT` in a slot of its own, and the pool that it was packed from."""
    pool, slot = pool_of(LAYOUT, 8, seed=1), slot_for(LAYOUT, identity)
    num_bytes = pack(native_plan(LAYOUT, identity), PoolView(pool, BLOCKS), slot)
    return slot[:num_bytes], pool


def refuse(chunk: memoryview, expected: ChunkIdentity, error: type[TransferError], field: str) -> None:
    """Asserts that `unpack` raises `error`, names `field` first, and leaves the pool alone."""
    pool = pool_of(LAYOUT, 8, seed=None)
    with pytest.raises(error) as caught:
        unpack(LAYOUT, expected, chunk, PoolView(pool, BLOCKS))
    assert type(caught.value) is error
    assert caught.value.message.startswith(field)
    assert torch.equal(pool, torch.full_like(pool, UNTOUCHED))


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[KvLayout, KvLayout, int, int, int]:
    """Two compatible layouts, a token range and a seed."""
    dtypes = st.sampled_from(list(KvDtype))
    sender = KvLayout(
        "model",
        num_layers=draw(st.integers(1, 3)),
        num_kv_heads=draw(st.integers(1, 3)),
        head_dim=draw(st.sampled_from([1, 4, 6, 16])),
        dtype=draw(dtypes),
        block_size=draw(st.sampled_from([1, 2, 4, 16])),
    )
    receiver = replace(sender, dtype=draw(dtypes), block_size=draw(st.sampled_from([1, 3, 8, 16])))
    return sender, receiver, draw(st.integers(0, 40)), draw(st.integers(1, 40)), draw(st.integers(0, 2**31))


@settings(max_examples=80, deadline=None)
@given(exchanges())
def test_a_chunk_crosses_between_any_two_pools(exchange: tuple[KvLayout, KvLayout, int, int, int]) -> None:
    """Whatever the shapes, dtypes, block sizes and ranges: the tokens arrive as converted, and no other slot changes."""
    sender, receiver, first, num_tokens, seed = exchange
    crossing = wire_dtype(sender.dtype, receiver.dtype)
    identity = identity_of(sender, first, num_tokens, dtype=crossing)
    shuffle = torch.Generator().manual_seed(seed)
    num_from, num_to = sender.num_blocks_for(first + num_tokens), receiver.num_blocks_for(first + num_tokens)
    source_ids = torch.randperm(num_from + 2, generator=shuffle)[:num_from].tolist()
    target_ids = torch.randperm(num_to + 2, generator=shuffle)[:num_to].tolist()
    source, target = pool_of(sender, num_from + 2, seed), pool_of(receiver, num_to + 2, None)
    slot = slot_for(sender, identity)

    num_bytes = pack(native_plan(sender, identity), PoolView(source, source_ids), slot)
    assert num_bytes == chunk_bytes(sender, crossing, num_tokens)
    unpack(receiver, identity, slot[:num_bytes], PoolView(target, target_ids))

    sent = tokens_of(source, source_ids, first, num_tokens)
    found = tokens_of(target, target_ids, first, num_tokens)
    assert torch.equal(found, sent.to(target.dtype))
    num_written = int((target != UNTOUCHED).sum())
    assert num_written == int((found != UNTOUCHED).sum())


def test_the_bytes_are_those_of_the_document() -> None:
    """A fixed chunk is, byte for byte, the committed one: whoever changes the format must change its version."""
    layout = KvLayout("golden", num_layers=1, num_kv_heads=1, head_dim=4, dtype=KvDtype.FLOAT16, block_size=2)
    pool = torch.arange(2 * 4 * 2 * 4, dtype=torch.float16).view(1, 2, 4, 2, 1, 4)
    identity = ChunkIdentity(layout.fingerprint(), REQUEST_ID, 0x0102030405060708, 9, 1, 3, KvDtype.FLOAT16)
    slot = slot_for(layout, identity)
    num_bytes = pack(native_plan(layout, identity), PoolView(pool, (3, 1)), slot)
    assert bytes(slot[:num_bytes]) == bytes.fromhex(GOLDEN.read_text())


def test_the_golden_chunk_can_be_read() -> None:
    """The committed bytes, and not only today's, are understood: tokens 1 to 3 of blocks 3 and 1."""
    layout = KvLayout("golden", num_layers=1, num_kv_heads=1, head_dim=4, dtype=KvDtype.FLOAT16, block_size=2)
    identity = ChunkIdentity(layout.fingerprint(), REQUEST_ID, 0x0102030405060708, 9, 1, 3, KvDtype.FLOAT16)
    pool = pool_of(layout, 2, None)
    unpack(layout, identity, memoryview(bytearray.fromhex(GOLDEN.read_text())), PoolView(pool, (0, 1)))
    assert pool[0, 0].flatten().tolist() == [UNTOUCHED] * 4 + list(range(28, 32)) + list(range(8, 16))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"request_id": "f" * 32}, StaleTicket),
        ({"generation": 6}, StaleTicket),
        ({"fingerprint": 1}, BadChunk),
        ({"chunk": 4}, BadChunk),
        ({"first_token": 2}, BadChunk),
        ({"num_tokens": 7}, BadChunk),
        ({"wire_dtype": KvDtype.FLOAT16}, BadChunk),
    ],
    ids=str,
)
def test_another_chunk_is_refused(change: dict[str, int | str], error: type[TransferError]) -> None:
    """A whole chunk that is not the expected one is refused, and the message names the field."""
    identity = identity_of(LAYOUT, 3, 6)
    chunk, _ = packed(identity)
    refuse(chunk, replace(identity, **change), error, next(iter(change)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"tier_counts": (5, 1, 0, 0, 0, 0, 0, 0)}, "tier counts"),
        ({"map_bytes": 4}, "map bytes"),
        ({"scale_bytes": 64}, "scale bytes"),
        ({"payload_bytes": 64}, "payload length"),
        ({"codec": 9}, "codec"),
    ],
    ids=str,
)
def test_a_forged_header_is_refused(change: dict[str, int], field: str) -> None:
    """Lengths, counts and codes that do not agree are refused even under a correct digest."""
    identity = identity_of(LAYOUT, 3, 6)
    chunk, _ = packed(identity)
    chunk[:HEADER_BYTES] = replace(ChunkHeader.from_bytes(chunk), **change).to_bytes()  # type: ignore[arg-type]
    write_digest(chunk)
    refuse(chunk, identity, BadChunk, field)


def test_a_map_that_names_another_tier_is_refused() -> None:
    """The precision map must agree with the counts, digest or not."""
    identity = identity_of(LAYOUT, 3, 6)
    chunk, _ = packed(identity)
    chunk[HEADER_BYTES + 1] = 0x10
    write_digest(chunk)
    refuse(chunk, identity, BadChunk, "precision map")


@pytest.mark.parametrize(
    ("offset", "value", "field"),
    [(0, 0x58, "magic"), (4, 9, "version"), (6, 9, "header length"), (54, 1, "zero fields"), (52, 77, "wire dtype")],
)
def test_another_format_is_refused(offset: int, value: int, field: str) -> None:
    """What no sender of this version writes is refused before anything else is believed."""
    identity = identity_of(LAYOUT, 3, 6)
    chunk, _ = packed(identity)
    chunk[offset] = value
    write_digest(chunk)
    refuse(chunk, identity, BadChunk, field)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_any_flipped_bit_is_refused(data: st.DataObject) -> None:
    """One bit flipped anywhere, header, padding or payload, is a `BadChunk`, and never another transfer's chunk."""
    identity = identity_of(LAYOUT, 3, 6)
    chunk, _ = packed(identity)
    bit = data.draw(st.integers(0, 8 * len(chunk) - 1))
    chunk[bit // 8] ^= 1 << bit % 8
    refuse(chunk, identity, BadChunk, "")


@pytest.mark.parametrize("num_bytes", [0, 1, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 64])
def test_a_truncated_chunk_is_refused(num_bytes: int) -> None:
    """Fewer bytes than the header says are refused by their number."""
    identity = identity_of(LAYOUT, 3, 6)
    chunk, _ = packed(identity)
    refuse(chunk[:num_bytes], identity, BadChunk, "length" if num_bytes < HEADER_BYTES else "payload length")


def test_a_longer_chunk_is_refused() -> None:
    """More bytes than the header says are refused too: a chunk is exactly its bytes."""
    identity = identity_of(LAYOUT, 3, 6)
    chunk, _ = packed(identity)
    longer = bytearray(chunk) + bytes(64)
    refuse(memoryview(longer), identity, BadChunk, "payload length")


def test_old_bytes_of_the_slot_do_not_cross() -> None:
    """A slot is used again and again: the chunk's bytes do not depend on what lay there."""
    identity = identity_of(LAYOUT, 3, 5)
    first, pool = packed(identity)
    slot = slot_for(LAYOUT, identity)
    slot[:] = bytes(len(slot))
    num_bytes = pack(native_plan(LAYOUT, identity), PoolView(pool, BLOCKS), slot)
    assert bytes(slot[:num_bytes]) == bytes(first)


def test_a_chunk_without_a_source_is_zeros_that_verify() -> None:
    """What a link test sends has the size of a real chunk and verifies like one."""
    identity = identity_of(LAYOUT, 0, 8)
    slot = slot_for(LAYOUT, identity)
    num_bytes = pack(native_plan(LAYOUT, identity), None, slot)
    assert num_bytes == chunk_bytes(LAYOUT, KvDtype.FLOAT32, 8)
    assert verify(LAYOUT, identity, slot[:num_bytes]).identity == identity


@pytest.mark.parametrize("block_ids", [(5, 1), (5, 1, 8), (5, 1, -1)], ids=str)
def test_a_table_that_does_not_cover_the_tokens_is_refused(block_ids: tuple[int, ...]) -> None:
    """Too few blocks, or blocks outside the pool, raise before any byte is copied, on either side."""
    identity = identity_of(LAYOUT, 3, 9)
    chunk, pool = packed(identity)
    with pytest.raises(TransferError, match="block"):
        pack(native_plan(LAYOUT, identity), PoolView(pool, block_ids), slot_for(LAYOUT, identity))
    target = pool_of(LAYOUT, 8, seed=None)
    with pytest.raises(TransferError, match="block"):
        unpack(LAYOUT, identity, chunk, PoolView(target, block_ids))
    assert torch.equal(target, torch.full_like(target, UNTOUCHED))


def test_a_slot_that_is_too_small_is_refused() -> None:
    """A chunk that does not fit raises and writes nothing."""
    identity = identity_of(LAYOUT, 0, 16)
    slot = memoryview(bytearray(chunk_bytes(LAYOUT, KvDtype.FLOAT32, 16) - 1))
    with pytest.raises(TransferError, match="does not fit"):
        pack(native_plan(LAYOUT, identity), PoolView(pool_of(LAYOUT, 8, seed=1), BLOCKS), slot)
    assert bytes(slot) == bytes(len(slot))


@given(st.integers(1, 64), st.sampled_from(list(KvDtype)), st.integers(0, 1 << 18))
def test_a_slot_is_filled_as_far_as_it_goes(granule: int, dtype: KvDtype, spare_bytes: int) -> None:
    """`max_tokens_per_slot` fits, one granule more does not, and too small a slot is refused with the size needed."""
    least = chunk_bytes(LAYOUT, dtype, granule)
    slot_bytes = least + spare_bytes
    most = max_tokens_per_slot(LAYOUT, dtype, slot_bytes, granule)
    assert most % granule == 0
    assert chunk_bytes(LAYOUT, dtype, most) <= slot_bytes < chunk_bytes(LAYOUT, dtype, most + granule)
    with pytest.raises(ConfigError, match=f"at least {least} bytes"):
        max_tokens_per_slot(LAYOUT, dtype, least - 1, granule)
