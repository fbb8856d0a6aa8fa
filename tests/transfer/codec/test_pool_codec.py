"""Chunks by ticket: the rule decides how they are written, and both ends agree without another word."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import BadChunk, ConfigError
from protocol.ids import WorkerId
from protocol.layout import KvDtype, KvLayout
from protocol.ticket import Ticket
from protocol.wire_rule import LOSSLESS, Importance, WireCodec, WireRule
from tests.transfer.codec.pools import REQUEST_ID, UNTOUCHED, pool_of, tokens_of
from transfer.codec.budget import CHUNK_TOKENS, minimum_budget, sixteen_bit_bytes
from transfer.codec.chunk import chunk_bytes, verify
from transfer.codec.pool_codec import PoolCodec
from transfer.codec.sizes import GROUP_TOKENS
from transfer.codec.tiers import TIER_16_BITS

LAYOUT = KvLayout("small", num_layers=8, num_kv_heads=2, head_dim=64, dtype=KvDtype.FLOAT32, block_size=16)
RULE = WireRule(WireCodec.CHANNEL, 0.36, Importance.WINDOW, num_sinks=4)


def ticket_of(
    rule: WireRule, num_tokens: int, chunk_tokens: int, first: int = 0, dtype: KvDtype | None = None
) -> Ticket:
    """A ticket between two workers with caches of `LAYOUT`."""
    return Ticket(
        request_id=REQUEST_ID,
        prefill_worker=WorkerId("p", "1"),
        decode_worker=WorkerId("d", "1"),
        generation=3,
        slots=(0,),
        slot_bytes=chunk_bytes(LAYOUT, dtype or LAYOUT.dtype, chunk_tokens),
        first_token=first,
        num_tokens=num_tokens,
        chunk_tokens=chunk_tokens,
        dtype=dtype or LAYOUT.dtype,
        lease_s=5.0,
        rule=rule,
    )


def send(ticket: Ticket, scores: list[float] | None = None) -> tuple[int, torch.Tensor, torch.Tensor]:
    """All chunks of a ticket from one pool to another: bytes, what was sent, and what landed."""
    num_blocks = LAYOUT.num_blocks_for(ticket.num_tokens)
    source, target = pool_of(LAYOUT, num_blocks, seed=4), pool_of(LAYOUT, num_blocks + 1, None)
    ids, their_ids = list(range(num_blocks)), list(range(num_blocks, 0, -1))
    slot = memoryview(bytearray(ticket.slot_bytes))
    sender, receiver, num_bytes = PoolCodec(source, LAYOUT), PoolCodec(target, LAYOUT), 0
    for chunk in range(ticket.num_chunks):
        size = sender.pack(ticket, chunk, ids, slot, scores)
        receiver.unpack(ticket, chunk, their_ids, slot[:size])
        num_bytes += size
    count = ticket.num_tokens - ticket.first_token
    return (
        num_bytes,
        tokens_of(source, ids, ticket.first_token, count),
        tokens_of(target, their_ids, ticket.first_token, count),
    )


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(list(WireCodec)),
    st.sampled_from(list(Importance)),
    st.integers(1, 700),
    st.sampled_from([16, 64, 208]),
    st.booleans(),
)
def test_every_rule_crosses(codec: WireCodec, kind: Importance, num_tokens: int, chunk: int, has_prefix: bool) -> None:
    """Any codec, importance, length and chunking: all chunks fit their slot, verify, and land close to what was sent."""
    rule = WireRule(codec, 0.9, kind, num_sinks=4)
    first = num_tokens // 2 if has_prefix else 0
    _, sent, landed = send(ticket_of(rule, num_tokens, chunk, first))
    assert not (landed == UNTOUCHED).any()
    # Half of a step: numbers of a normal distribution span 9 at most here, and some tokens have 4 bits.
    assert float((landed - sent).abs().max()) <= (0.5 if codec in (WireCodec.UNIFORM_INT4, WireCodec.FP8) else 0.3)
    if rule.is_lossless:
        assert torch.equal(landed, sent)


@pytest.mark.parametrize("codec", [WireCodec.CHANNEL, WireCodec.SPECTRUM])
@pytest.mark.parametrize("chunk", [32, 208, 1024])
@pytest.mark.parametrize("num_tokens", [256, 419, 1003])
@pytest.mark.parametrize("budget", [0.4, 0.5, 0.75])
def test_bytes_are_those_of_the_budget(codec: WireCodec, chunk: int, num_tokens: int, budget: float) -> None:
    """All chunks of a transfer of 256 tokens or more together: within the budget, and within a hundredth of it."""
    rule = replace(RULE, codec=codec, budget=budget)
    num_bytes, _, _ = send(ticket_of(rule, num_tokens, chunk))
    ratio = num_bytes / sixteen_bit_bytes(LAYOUT, num_tokens)
    assert 0.99 * budget <= ratio <= budget


def test_a_short_prompt_gets_the_least_it_can() -> None:
    """Where a handful of tokens cannot keep to the budget, they cross in as few bytes as the codec has."""
    num_bytes, sent, landed = send(ticket_of(replace(RULE, budget=0.32), 20, 64))
    assert num_bytes == round(minimum_budget(LAYOUT, RULE, 20) * sixteen_bit_bytes(LAYOUT, 20))
    assert float((landed - sent).abs().max()) < 0.25


def test_a_budget_for_no_prompt_is_an_error() -> None:
    """What not even a long prompt can keep to is refused when the first chunk is packed."""
    with pytest.raises(ConfigError, match=r"kv-wire-budget 0\.2 cannot be reached by channel"):
        send(ticket_of(replace(RULE, budget=0.2), 300, 64))


def test_given_importance_decides() -> None:
    """Tokens that were scored high arrive better than those that were scored low."""
    scores = [1.0 if token % 2 else 0.001 for token in range(256)]
    _, sent, landed = send(ticket_of(replace(RULE, num_sinks=0, budget=0.4), 256, 256), scores)
    error = (landed - sent).square().mean(dim=(0, 1, 3, 4))
    assert float(error[1::2].mean()) * 4 < float(error[0::2].mean())


def test_small_chunks_do_not_pass_for_large_ones() -> None:
    """Chunks of 16 tokens carry too many parameters for 0.3: the error says so, instead of more bytes than were asked for."""
    rule = replace(RULE, budget=0.32)
    send(ticket_of(rule, 512, 128))
    with pytest.raises(ConfigError, match=r"chunks of 16 tokens need at least 0\.3"):
        send(ticket_of(rule, 512, 16))


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(list(WireCodec)),
    st.floats(0.36, 1.0),
    st.sampled_from(list(KvDtype)),
    st.integers(1, 600),
    st.integers(140_000, 1_000_000),
)
def test_the_chunks_of_a_rule_fit_their_slots(
    codec: WireCodec, budget: float, dtype: KvDtype, num_tokens: int, slot_bytes: int
) -> None:
    """Chunks of as many tokens as a rule has fit into the slot, every one of a transfer; native ones as without a rule."""
    if budget < 0.52 and codec in (WireCodec.UNIFORM_INT8, WireCodec.FP8):
        return
    rule = replace(RULE, codec=codec, budget=budget)
    side = PoolCodec(pool_of(LAYOUT, 1, None), LAYOUT)
    chunk_tokens = side.chunk_tokens(dtype, slot_bytes, rule)
    native = side.chunk_tokens(dtype, slot_bytes)
    assert chunk_tokens % LAYOUT.block_size == 0
    assert chunk_tokens == native if rule.is_lossless else min(native, GROUP_TOKENS) <= chunk_tokens <= CHUNK_TOKENS
    ticket = replace(ticket_of(rule, num_tokens, chunk_tokens, dtype=dtype), slot_bytes=slot_bytes)
    send(ticket)


@pytest.mark.parametrize("dtype", [KvDtype.FLOAT16, KvDtype.BFLOAT16])
def test_the_dtype_of_the_ticket_is_for_exact_tokens(dtype: KvDtype) -> None:
    """Sinks cross in 16 bits of the ticket's dtype, and are what native would have sent."""
    _, sent, landed = send(ticket_of(RULE, 100, 112, dtype=dtype))
    wire = torch.float16 if dtype is KvDtype.FLOAT16 else torch.bfloat16
    assert torch.equal(landed[:, :, :4], sent[:, :, :4].to(wire).float())


def test_packing_again_gives_the_same_bytes() -> None:
    """A chunk that was refused and goes once more is the same chunk, for every importance."""
    pool, slots = pool_of(LAYOUT, 8, seed=1), [memoryview(bytearray(1 << 22)) for _ in range(2)]
    for kind in Importance:
        ticket = ticket_of(replace(RULE, importance=kind), 128, 128)
        sizes = [PoolCodec(pool, LAYOUT).pack(ticket, 0, list(range(8)), slot) for slot in slots]
        assert sizes[0] == sizes[1]
        assert slots[0] == slots[1]


@pytest.mark.parametrize("codec", list(WireCodec))
def test_a_link_test_crosses_under_any_rule(codec: WireCodec) -> None:
    """Without blocks zeros are packed, and verified at the other end, in the size of a real chunk."""
    ticket = ticket_of(WireRule(codec, 0.6), 100, 112)
    slot = memoryview(bytearray(ticket.slot_bytes))
    codec_side = PoolCodec(pool_of(LAYOUT, 1, seed=1), LAYOUT)
    size = codec_side.pack(ticket, 0, (), slot)
    codec_side.unpack(ticket, 0, (), slot[:size])
    real = PoolCodec(pool_of(LAYOUT, 7, seed=1), LAYOUT)
    assert size == real.pack(ticket, 0, range(7), slot)


def test_sinks_count_from_the_prompts_start() -> None:
    """Behind a cached prefix there are no sinks left; within the first chunk they are its first tokens."""
    slot = memoryview(bytearray(1 << 22))
    codec = PoolCodec(pool_of(LAYOUT, 16, seed=1), LAYOUT)
    for first, expected in ((0, 4), (2, 2), (64, 0)):
        ticket = ticket_of(RULE, 192, 192, first)
        size = codec.pack(ticket, 0, range(12), slot)
        identity = codec._identity(ticket, 0)
        tiers = verify(LAYOUT, identity, slot[:size], RULE).tiers
        assert np.flatnonzero(tiers == TIER_16_BITS).tolist() == list(range(expected))


def test_a_lossy_chunk_never_serves_a_lossless_ticket() -> None:
    """Whatever the sender does, the receiver's own ticket decides."""
    lossy = ticket_of(RULE, 64, 64)
    slot = memoryview(bytearray(lossy.slot_bytes))
    pool = pool_of(LAYOUT, 4, seed=1)
    size = PoolCodec(pool, LAYOUT).pack(lossy, 0, range(4), slot)
    target = pool_of(LAYOUT, 4, None)
    with pytest.raises(BadChunk, match="codec"):
        PoolCodec(target, LAYOUT).unpack(replace(lossy, rule=LOSSLESS), 0, range(4), slot[:size])
    assert torch.equal(target, torch.full_like(target, UNTOUCHED))
