"""How many bytes a chunk may have, and whether a rule's budget can be reached at all. Integers only: no tensors here.

A budget is kept by the transfer as a whole. Each chunk gets the least that it can be written in and a share, by its tokens,
of what is left: so a short last chunk, whose parameters weigh more, and the sinks of the first do not starve the rest. What
one chunk cannot use, because bits come by the token, goes to the next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from protocol.errors import ConfigError
from protocol.layout import KvDtype, KvLayout
from protocol.wire_rule import WireCodec, WireRule
from transfer.codec.sizes import (
    ALIGNMENT_BYTES,
    GROUP_TOKENS,
    PayloadSizes,
    channel_sizes,
    native_sizes,
    symmetric_sizes,
)
from transfer.codec.tiers import NUM_PLANES, NUM_TIERS, TIER_4_BITS, TIER_8_BITS, TIER_16_BITS, TIER_NATIVE

CHUNK_TOKENS = 2 * GROUP_TOKENS
"""Divides the usual step of a prefill, and two groups fill a chunk. Twice as many tokens doubled the tail of a transfer over
25 Mbit/s, half as many took no less time."""
LONG_PROMPT_CHUNKS = 1024
"""A budget that not even so many chunks reach is refused; a shorter prompt may need more, and then gets the least it can."""

_ONLY_TIER = {
    WireCodec.NATIVE: TIER_NATIVE,
    WireCodec.UNIFORM_INT8: TIER_8_BITS,
    WireCodec.UNIFORM_INT4: TIER_4_BITS,
    WireCodec.FP8: TIER_8_BITS,
}


@dataclass(frozen=True, slots=True)
class TokenSpan:
    """Tokens `[first, end)` of a prompt."""

    first: int
    end: int

    @property
    def num_tokens(self) -> int:
        """How many they are."""
        return self.end - self.first

    def num_sinks(self, rule: WireRule) -> int:
        """Those of them that are sinks."""
        return min(max(rule.num_sinks - self.first, 0), self.num_tokens)


def sixteen_bit_bytes(layout: KvLayout, num_tokens: int) -> int:
    """What budgets are fractions of: two bytes an element, nothing else."""
    return 2 * layout.elements_per_token * num_tokens


def only_tier(rule: WireRule) -> int | None:
    """The tier of all tokens under a codec that has but one; None where there is a choice."""
    return _ONLY_TIER.get(rule.codec)


def lowest_tier(rule: WireRule) -> int:
    """The tier of the tokens that matter least. Raises `ConfigError` for 4 bits only where they are not allowed."""
    tier = only_tier(rule)
    if tier is None:
        return TIER_4_BITS if rule.allows_int4 else TIER_8_BITS
    if tier == TIER_4_BITS and not rule.allows_int4:
        raise ConfigError(
            f"{rule.codec} has 4 bits a value and INT4 is not allowed: choose another codec", param="kv_wire_codec"
        )
    return tier


def sizes_of(layout: KvLayout, rule: WireRule, counts: Sequence[int]) -> PayloadSizes:
    """The payload of a chunk with so many tokens at each tier; native in the cache's own dtype."""
    if rule.codec is WireCodec.NATIVE:
        return native_sizes(layout, layout.dtype, counts)
    return channel_sizes(layout, counts) if rule.codec is WireCodec.CHANNEL else symmetric_sizes(layout, counts)


def counts_with(num_exact: int, tier: int, num_others: int) -> tuple[int, ...]:
    """Tier counts of some tokens at 16 bits and the others at one tier."""
    counts = [0] * NUM_TIERS
    counts[tier] += num_others
    counts[TIER_16_BITS] += num_exact
    return tuple(counts)


@lru_cache(maxsize=1024)
def least_bytes(layout: KvLayout, rule: WireRule, num_tokens: int, num_sinks: int) -> int:
    """The smallest chunk that the rule allows for so many tokens, header included."""
    tier = lowest_tier(rule)
    if only_tier(rule) is not None:
        return sizes_of(layout, rule, counts_with(0, tier, num_tokens)).chunk_bytes
    lowest = sizes_of(layout, rule, counts_with(num_sinks, tier, num_tokens - num_sinks)).chunk_bytes
    # A group of one token has more parameters than bits.
    return min(lowest, _most_bytes(layout, num_tokens))


def minimum_budget(layout: KvLayout, rule: WireRule, num_tokens: int, chunk_tokens: int | None = None) -> float:
    """The smallest budget that this rule's codec reaches for a prompt of `num_tokens` in chunks of `chunk_tokens`, or in one.

    Raises `ConfigError` when the codec cannot be used at all without INT4.
    """
    spans = spans_of(TokenSpan(0, num_tokens), chunk_tokens or num_tokens)
    return sum(_least_of(layout, rule, one) for one in spans) / sixteen_bit_bytes(layout, num_tokens)


def check_reachable(layout: KvLayout, rule: WireRule, chunk_tokens: int) -> None:
    """Raises `ConfigError` with the reachable minimum unless a long prompt in such chunks keeps to the budget."""
    if rule.is_lossless:
        return
    least = minimum_budget(layout, rule, LONG_PROMPT_CHUNKS * chunk_tokens, chunk_tokens)
    if rule.budget < least:
        raise ConfigError(
            f"kv-wire-budget {rule.budget:g} cannot be reached by {rule.codec} "
            f"{'with' if rule.allows_int4 else 'without'} INT4: chunks of {chunk_tokens} tokens need at least "
            f"{math.ceil(least * 1e4) / 1e4:g}; larger slots hold longer chunks, which need less",
            param="kv_wire_budget",
        )


def spans_of(transfer: TokenSpan, chunk_tokens: int) -> list[TokenSpan]:
    """The chunks of a transfer, as `Ticket.token_range` has them."""
    starts = range(transfer.first, transfer.end, chunk_tokens)
    return [TokenSpan(start, min(start + chunk_tokens, transfer.end)) for start in starts]


def most_bytes_of_chunk(layout: KvLayout, rule: WireRule, num_tokens: int) -> int:
    """No chunk of at most `num_tokens` tokens gets more, wherever in a transfer it is."""
    least = least_bytes(layout, rule, num_tokens, 0)
    share = max(0, math.ceil(rule.budget * sixteen_bit_bytes(layout, num_tokens)) - least)
    with_sinks = least_bytes(layout, rule, num_tokens, min(rule.num_sinks, num_tokens)) + share
    return min(with_sinks + _coarsest_step(layout), _most_bytes(layout, num_tokens))


def strict_budget(layout: KvLayout, rule: WireRule, span: TokenSpan) -> int:
    """Bytes of a chunk on its own: its fraction of 16 bits. Raises `ConfigError` when the rule cannot keep to them."""
    allowed = math.floor(rule.budget * sixteen_bit_bytes(layout, span.num_tokens))
    least = _least_of(layout, rule, span)
    if least > allowed:
        raise ConfigError(
            f"kv-wire-budget {rule.budget:g} cannot be reached by {rule.codec}: tokens {span.first} to {span.end} need "
            f"at least {least / sixteen_bit_bytes(layout, span.num_tokens):.4f}",
            param="kv_wire_budget",
        )
    return allowed


@lru_cache(maxsize=256)
def lossy_chunk_tokens(layout: KvLayout, rule: WireRule, slot_bytes: int, native_tokens: int) -> int:
    """Tokens of a chunk under a lossy rule, in whole blocks: `CHUNK_TOKENS`, or fewer where a slot does not hold them.

    A chunk leaves when its last token has been computed, so that what is sent after the prefill grows with it; below
    `CHUNK_TOKENS` the last prefill step decides that, not the chunk. Whole groups of K's parameters are preferred: a group
    that is cut short has more parameters for its tokens. `native_tokens` always fit.
    """
    block = layout.block_size
    most_tokens = max(block, CHUNK_TOKENS // block * block)
    found = min(native_tokens, most_tokens)
    while found < most_tokens and most_bytes_of_chunk(layout, rule, found + block) <= slot_bytes:
        found += block
    whole_groups = found // GROUP_TOKENS * GROUP_TOKENS
    return whole_groups if whole_groups and whole_groups % block == 0 else found


@lru_cache(maxsize=256)
def shared_budgets(layout: KvLayout, rule: WireRule, transfer: TokenSpan, chunk_tokens: int) -> tuple[int, ...]:
    """Bytes of each chunk of a transfer: together they keep to the budget where they can.

    Where they cannot, because the transfer is short, each gets the least it can be written in. Raises `ConfigError` for a
    rule that no prompt can keep to. No chunk gets more than its tokens at 16 bits need, or than `most_bytes_of_chunk`.
    """
    check_reachable(layout, rule, chunk_tokens)
    spans = spans_of(transfer, chunk_tokens)
    least = [_least_of(layout, rule, one) for one in spans]
    allowed = math.floor(rule.budget * sixteen_bit_bytes(layout, transfer.num_tokens))
    largest = most_bytes_of_chunk(layout, rule, chunk_tokens)
    spare, carried, found = max(0, allowed - sum(least)), 0, []
    for span, needed in zip(spans, least, strict=True):
        wanted = needed + spare * span.num_tokens // transfer.num_tokens + carried
        found.append(min(wanted, largest, _most_bytes(layout, span.num_tokens)))
        carried = min(wanted - _used(layout, rule, span, found[-1]), _coarsest_step(layout))
    return tuple(found)


def most_exact(layout: KvLayout, rule: WireRule, num_tokens: int, limit: int) -> int:
    """How many of a chunk's tokens can be at 16 bits within a limit of bytes, the others being at 8; 0 when none can."""

    def fits(number: int) -> bool:
        return sizes_of(layout, rule, counts_with(number, TIER_8_BITS, num_tokens - number)).chunk_bytes <= limit

    found = most(num_tokens, fits)
    # Bytes grow with each promotion, but for the one that leaves a group of K's parameters out: look a group further.
    further = range(min(found + GROUP_TOKENS, num_tokens), found, -1)
    return next((number for number in further if fits(number)), found)


def most(limit: int, holds: Callable[[int], bool]) -> int:
    """The largest number up to `limit` that holds, given that all smaller ones do; 0 when none does."""
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if holds(middle) else (low, middle - 1)
    return low


def _used(layout: KvLayout, rule: WireRule, span: TokenSpan, limit: int) -> int:
    """What a chunk uses of a limit, or a little more: bits come by the plane, by half a byte, and then by the token."""
    if only_tier(rule) is not None:
        return limit
    num_tokens, num_sinks = span.num_tokens, span.num_sinks(rule)
    num_exact = most_exact(layout, rule, num_tokens, limit)
    if num_exact >= num_sinks and num_exact:
        return sizes_of(layout, rule, counts_with(num_exact, TIER_8_BITS, num_tokens - num_exact)).chunk_bytes
    start = _least_of(layout, rule, span)
    step = layout.elements_per_token // (8 if rule.codec is WireCodec.CHANNEL else 2)
    rounding = NUM_PLANES * (ALIGNMENT_BYTES + layout.num_layers)
    return min(limit, start + (limit - start) // max(1, step) * step + rounding)


def _coarsest_step(layout: KvLayout) -> int:
    """Bytes that a token at 8 bits gains when it goes to 16: its codes double, its own parameters go."""
    return max(0, layout.elements_per_token - 4 * layout.num_layers * layout.num_kv_heads)


def _least_of(layout: KvLayout, rule: WireRule, span: TokenSpan) -> int:
    return least_bytes(layout, rule, span.num_tokens, span.num_sinks(rule))


def _most_bytes(layout: KvLayout, num_tokens: int) -> int:
    return native_sizes(layout, KvDtype.FLOAT16, counts_with(num_tokens, TIER_16_BITS, 0)).chunk_bytes
