"""Lossy codecs: what lands is what the document says, within half a step of what was sent, whatever shapes and values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import TransferError
from protocol.layout import KvDtype, KvLayout
from protocol.wire_rule import WireCodec
from tests.transfer.codec.pools import LAYOUT, REQUEST_ID, Crossing, Values, cross, pool_of, rule_of
from tests.transfer.codec.reader import Floats, read
from transfer.codec.chunk import pack
from transfer.codec.codec import ChunkPlan
from transfer.codec.digest import digest_of
from transfer.codec.format import ChunkIdentity
from transfer.codec.pool_view import PoolView
from transfer.codec.registry import BY_NAME
from transfer.codec.rows import TORCH_DTYPES
from transfer.codec.tiers import TIER_4_BITS, TIER_8_BITS, TIER_16_BITS, Tiers, uniform

LOSSY = [codec for codec in WireCodec if codec is not WireCodec.NATIVE]
HERE = Path(__file__).parent


@st.composite
def layouts(draw: st.DrawFn, dtype: KvDtype | None = None) -> KvLayout:
    """Small caches, odd sizes too."""
    return KvLayout(
        "model",
        num_layers=draw(st.integers(1, 3)),
        num_kv_heads=draw(st.integers(1, 3)),
        head_dim=draw(st.sampled_from([1, 3, 4, 16])),
        dtype=dtype or draw(st.sampled_from(list(KvDtype))),
        block_size=draw(st.sampled_from([1, 4, 16])),
    )


@st.composite
def crossings(draw: st.DrawFn, dtype: KvDtype | None = None) -> tuple[WireCodec, Crossing]:
    """A codec and a chunk that it packed, with any tiers that it has and values of any kind."""
    codec, layout, seed = draw(st.sampled_from(LOSSY)), draw(layouts(dtype)), draw(st.integers(0, 2**31))
    num_tokens = draw(st.integers(1, 12) | st.integers(60, 140))
    allowed = sorted(BY_NAME[codec].tiers)
    tiers = np.random.default_rng(seed).choice(allowed, num_tokens).astype(np.uint8)
    values, first = draw(st.sampled_from(list(Values))), draw(st.integers(0, 20))
    return codec, cross(layout, codec, tiers, values, seed=seed, first=first)


def half_steps(codec: WireCodec, steps: Floats, sent: Floats, tiers: Tiers) -> Floats:
    """The error that each value may have, but for float32's own rounding."""
    if codec is WireCodec.CHANNEL:
        planes = np.where(tiers == TIER_16_BITS, 0, TIER_4_BITS - tiers.astype(int))
        allowed = steps * 2.0 ** -(planes[None, None, :, None, None] + 1.0)
    elif codec is WireCodec.FP8:
        allowed = np.maximum(np.abs(sent) / 16, steps * 2.0**-10)
    else:
        allowed = steps / 2
    exact = (tiers == TIER_16_BITS)[None, None, :, None, None]
    return np.where(exact, np.maximum(np.abs(sent) * 2.0**-11, 2.0**-25), allowed).astype(np.float32)


@settings(max_examples=80, deadline=None)
@given(crossings(KvDtype.FLOAT32))
def test_errors_stay_within_half_a_step(crossing: tuple[WireCodec, Crossing]) -> None:
    """Every value lands within half of its step, a step halving with each plane; nothing else in the pool changes."""
    codec, one = crossing
    sent, landed = one.sent.numpy(), one.landed(rule_of(codec)).numpy()
    found = read(bytes(one.chunk), one.layout)
    allowed = half_steps(codec, found.steps, sent, found.tiers)
    assert np.all(np.abs(landed - sent) <= allowed * (1 + 1e-5) + np.abs(sent) * 2.0**-23)


@settings(max_examples=100, deadline=None)
@given(crossings(), st.sampled_from(list(KvDtype)))
def test_what_lands_is_what_the_document_says(crossing: tuple[WireCodec, Crossing], dtype: KvDtype) -> None:
    """From any dtype into any other: a reader that knows only the document finds the same values, rounded to the cache's.

    `channel` divides by 2^(k+1) - 1 in float32, the reader in float64: they may round to neighbours.
    """
    codec, one = crossing
    landed = one.landed(rule_of(codec), dtype)
    found = read(bytes(one.chunk), one.layout)
    assert landed.dtype == TORCH_DTYPES[dtype]
    # At 16 bits and in the symmetric codecs steps count for nothing here: there is one rounding.
    is_coded = codec is WireCodec.CHANNEL
    slack = (16 * np.abs(found.steps) + np.abs(found.values)) * 2.0**-22 * is_coded
    lowest, highest = (torch.from_numpy(found.values + sign * slack) for sign in (-1, 1))
    if dtype is KvDtype.FLOAT16:
        lowest, highest = lowest.clamp(-65504, 65504), highest.clamp(-65504, 65504)
    assert bool(((lowest.to(landed.dtype) <= landed) & (landed <= highest.to(landed.dtype))).all())


@settings(max_examples=60, deadline=None)
@given(crossings())
def test_packing_is_a_function_of_tokens_and_tiers(crossing: tuple[WireCodec, Crossing]) -> None:
    """The same tokens give the same bytes, whatever lay in the slot before."""
    codec, one = crossing
    plan = ChunkPlan.of(BY_NAME[codec], one.layout, one.identity, read(bytes(one.chunk), one.layout).tiers)
    slot = memoryview(bytearray(plan.sizes.chunk_bytes + 5))
    num_bytes = pack(plan, PoolView(one.pool, one.block_ids), slot)
    assert bytes(slot[:num_bytes]) == bytes(one.chunk)


@settings(max_examples=40, deadline=None)
@given(layouts(), st.integers(1, 140), st.sampled_from(list(Values)), st.integers(0, 2**31))
def test_the_base_is_the_4_bit_code_whatever_follows(layout: KvLayout, num: int, values: Values, seed: int) -> None:
    """Parameters and base of a chunk are byte for byte those of the same tokens at 4 bits, with any planes after them."""
    mixed = np.random.default_rng(seed).integers(TIER_8_BITS, TIER_4_BITS + 1, num).astype(np.uint8)
    plain = cross(layout, WireCodec.CHANNEL, uniform(num, TIER_4_BITS), values, seed=seed)
    refined = cross(layout, WireCodec.CHANNEL, mixed, values, seed=seed)
    sizes = ChunkPlan.of(BY_NAME[WireCodec.CHANNEL], layout, plain.identity, uniform(num, TIER_4_BITS)).sizes
    start, end = 128 + sizes.scales_offset, len(plain.chunk)
    assert bytes(refined.chunk[start:end]) == bytes(plain.chunk[start:end])


def test_exact_tokens_leave_the_scales_of_their_group() -> None:
    """An outlier that crosses at 16 bits does not widen the steps of its neighbours."""
    tiers = uniform(20, TIER_4_BITS)
    tiers[0] = TIER_16_BITS
    pool = pool_of(LAYOUT, 5, seed=1)
    ids = [0, 1, 2, 3, 4]
    pool[:, :, 0, 0] = 1000.0
    identity = ChunkIdentity(LAYOUT.fingerprint(), REQUEST_ID, 1, 0, 0, 20, LAYOUT.dtype)
    plan = ChunkPlan.of(BY_NAME[WireCodec.CHANNEL], LAYOUT, identity, tiers)
    slot = memoryview(bytearray(plan.sizes.chunk_bytes))
    pack(plan, PoolView(pool, ids), slot)
    found = read(bytes(slot), LAYOUT)
    assert np.all(found.values[:, :, 0] == 1000.0)
    assert found.steps.max() < 1.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf"), 3e38])
@pytest.mark.parametrize(
    ("codec", "tier"),
    [(c, t) for c in LOSSY for t in (TIER_16_BITS, TIER_8_BITS, TIER_4_BITS) if t in BY_NAME[c].tiers],
)
def test_what_cannot_be_sent_is_an_error(codec: WireCodec, bad: float, tier: int) -> None:
    """NaN, infinity and what float16 cannot hold, anywhere in K or V: the chunk is not packed."""
    for which in range(2):
        pool = pool_of(LAYOUT, 2, seed=1)
        pool[1, which, 1, 2, 1, 3] = bad
        identity = ChunkIdentity(LAYOUT.fingerprint(), REQUEST_ID, 1, 0, 0, 8, LAYOUT.dtype)
        plan = ChunkPlan.of(BY_NAME[codec], LAYOUT, identity, uniform(8, tier))
        with pytest.raises(TransferError, match="not sent lossily"):
            pack(plan, PoolView(pool, (0, 1)), memoryview(bytearray(plan.sizes.chunk_bytes)))


@pytest.mark.parametrize("codec", LOSSY)
def test_what_the_receiver_cannot_hold_is_an_error(codec: WireCodec) -> None:
    """A float32 cache with values beyond float16 sends nothing to a float16 cache."""
    pool = torch.full((2, 2, 1, 4, 2, 8), 70000.0)
    identity = ChunkIdentity(LAYOUT.fingerprint(), REQUEST_ID, 1, 0, 0, 4, KvDtype.FLOAT16)
    plan = ChunkPlan.of(BY_NAME[codec], LAYOUT, identity, uniform(4, max(BY_NAME[codec].tiers)))
    with pytest.raises(TransferError, match="not sent lossily"):
        pack(plan, PoolView(pool, (0,)), memoryview(bytearray(plan.sizes.chunk_bytes)))


def test_bfloat16_sinks_cross_exactly() -> None:
    """Tier 1 of a bfloat16 cache is bfloat16: values beyond float16's range arrive bit for bit."""
    layout = replace(LAYOUT, dtype=KvDtype.BFLOAT16)
    one = cross(layout, WireCodec.CHANNEL, uniform(5, TIER_16_BITS), Values.HUGE)
    assert torch.equal(one.landed(rule_of(WireCodec.CHANNEL)).float(), one.sent)


def golden(codec: WireCodec) -> tuple[ChunkPlan, PoolView]:
    """A fixed chunk of five tokens that has every tier of its codec, values easy to do by hand."""
    layout = KvLayout("golden", num_layers=1, num_kv_heads=1, head_dim=4, dtype=KvDtype.FLOAT16, block_size=8)
    identity = ChunkIdentity(layout.fingerprint(), REQUEST_ID, 0x0102030405060708, 9, 1, 7, KvDtype.FLOAT16)
    pool = ((torch.arange(64) * 37 % 64).view(1, 2, 1, 8, 1, 4) / 8 - 3).to(torch.float16)
    allowed = sorted(BY_NAME[codec].tiers)
    tiers = np.array([allowed[token % len(allowed)] for token in range(7)], dtype=np.uint8)
    return ChunkPlan.of(BY_NAME[codec], layout, identity, tiers), PoolView(pool, (0,))


@pytest.mark.parametrize("codec", LOSSY)
def test_the_bytes_are_those_of_the_document(codec: WireCodec) -> None:
    """A fixed chunk is, byte for byte, the committed one: whoever changes the format must change its version."""
    plan, source = golden(codec)
    slot = memoryview(bytearray(plan.sizes.chunk_bytes))
    pack(plan, source, slot)
    committed = bytes.fromhex((HERE / f"golden_{codec}.hex").read_text())
    assert bytes(slot) == committed
    assert digest_of(memoryview(committed)) == int.from_bytes(committed[104:112], "little")
