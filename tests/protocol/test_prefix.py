"""Names of blocks: equal exactly when the tokens and all else that the KV depends on are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BadRequest, ConfigError
from protocol.layout import KvDtype
from protocol.prefix import EXACT, HASH_BYTES, HashChain, PrefixIdentity, max_reused_blocks, wire_precision
from protocol.wire_rule import Importance, WireCodec, WireRule

IDENTITY = PrefixIdentity("model", KvDtype.BFLOAT16, block_size=4)
CHANNEL = WireRule(WireCodec.CHANNEL, 0.5)
tokens = st.lists(st.integers(0, 3), max_size=24)


@given(tokens, tokens)
def test_names_are_equal_as_far_as_the_tokens_are(first: list[int], second: list[int]) -> None:
    """Two prompts share the names of the full blocks that they begin with in common, and no other."""
    ours, theirs = HashChain(IDENTITY, first).hashes, HashChain(IDENTITY, second).hashes
    assert len(ours) == len(first) // 4
    for index, (one, other) in enumerate(zip(ours, theirs, strict=False), start=1):
        assert (one == other) == (first[: 4 * index] == second[: 4 * index])


@given(tokens, st.lists(st.integers(0, 24)))
def test_a_chain_that_grows_is_the_same(token_ids: list[int], lengths: list[int]) -> None:
    """However a sequence grew, its names are those of the whole, and a fork goes its own way."""
    chain = HashChain(IDENTITY)
    for length in sorted(lengths):
        chain.extend(token_ids[:length])
    fork = chain.fork()
    chain.extend(token_ids)
    assert chain.hashes == HashChain(IDENTITY, token_ids).hashes
    before = [*chain.hashes]
    fork.extend([*token_ids, 9, 9, 9, 9])
    assert chain.hashes == before
    assert fork.hashes == HashChain(IDENTITY, [*token_ids, 9, 9, 9, 9]).hashes


def test_nothing_is_shared_across_identities() -> None:
    """Another model, dtype, block size, adapter, precision or salt is another name; so are texts moved between fields."""
    others = [
        IDENTITY,
        replace(IDENTITY, model_fingerprint="other"),
        replace(IDENTITY, kv_dtype=KvDtype.FLOAT16),
        replace(IDENTITY, block_size=8),
        replace(IDENTITY, adapter="a"),
        replace(IDENTITY, adapter="b"),
        replace(IDENTITY, wire_precision=wire_precision(CHANNEL, KvDtype.BFLOAT16, KvDtype.BFLOAT16)),
        replace(IDENTITY, cache_salt="a"),
        replace(IDENTITY, cache_salt="b"),
        replace(IDENTITY, adapter='a", "b'),
        replace(IDENTITY, adapter="a", cache_salt="b"),
        replace(IDENTITY, adapter="b", cache_salt="a"),
    ]
    names = {name for one in others for name in HashChain(one, range(16)).hashes}
    assert len(names) == sum(16 // one.block_size for one in others)
    assert {len(name) for name in names} == {HASH_BYTES}


@pytest.mark.parametrize(
    ("rule", "sender", "receiver", "expected"),
    [
        (WireRule(), KvDtype.BFLOAT16, KvDtype.BFLOAT16, EXACT),
        (WireRule(), KvDtype.FLOAT32, KvDtype.BFLOAT16, EXACT),
        (WireRule(), KvDtype.BFLOAT16, KvDtype.FLOAT32, "native:bfloat16"),
        (CHANNEL, KvDtype.BFLOAT16, KvDtype.BFLOAT16, "channel:bfloat16:0.5:window:4:int4"),
    ],
)
def test_the_precision_says_what_was_lost(rule: WireRule, sender: KvDtype, receiver: KvDtype, expected: str) -> None:
    """KV is exact only if it landed as this worker would have computed it."""
    assert wire_precision(rule, sender, receiver) == expected


def test_every_field_of_a_lossy_rule_counts() -> None:
    """Rules that differ in anything have different precisions."""
    rules = [
        CHANNEL,
        replace(CHANNEL, codec=WireCodec.FP8),
        replace(CHANNEL, budget=0.25),
        replace(CHANNEL, importance=Importance.RANDOM),
        replace(CHANNEL, num_sinks=5),
        replace(CHANNEL, allows_int4=False),
    ]
    assert len({wire_precision(rule, KvDtype.FLOAT16, KvDtype.FLOAT16) for rule in rules}) == len(rules)


@pytest.mark.parametrize(("num_tokens", "expected"), [(0, 0), (1, 0), (16, 0), (17, 1), (32, 1), (33, 2)])
def test_the_last_token_is_computed(num_tokens: int, expected: int) -> None:
    """A prompt that ends with a block leaves that block to be computed."""
    assert max_reused_blocks(num_tokens, 16) == expected


@pytest.mark.parametrize("wrong", [-1, 2**32])
def test_token_ids_must_fit(wrong: int) -> None:
    """A token id that cannot be written is the client's mistake, and names nothing."""
    chain = HashChain(IDENTITY, [1, 2, 3, 4])
    with pytest.raises(BadRequest, match="token ids"):
        chain.extend([1, 2, 3, 4, 5, 6, 7, wrong])
    assert len(chain.hashes) == 1


def test_a_block_holds_a_token() -> None:
    """Blocks without tokens cannot be named."""
    with pytest.raises(ConfigError):
        HashChain(replace(IDENTITY, block_size=0))
