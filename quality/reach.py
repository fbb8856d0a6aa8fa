"""The smallest budget that a rule can keep to, before any worker is there to refuse it. Integers only: no tensors here."""

from __future__ import annotations

import math
from dataclasses import replace

from protocol.layout import KvLayout
from protocol.wire_rule import WireRule
from transfer.codec.budget import LONG_PROMPT_CHUNKS, lossy_chunk_tokens, minimum_budget

SHOWN_DIGITS = 4
_LOWEST = 0.1
"""Below what any codec reaches."""


def smallest_budget(layout: KvLayout, rule: WireRule, slot_bytes: int) -> float:
    """The smallest budget, rounded up to four digits, that `rule`'s codec reaches for long prompts in slots of `slot_bytes`.

    The rule's own budget does not matter. A larger budget makes chunks hold fewer tokens, which need a larger one: so the
    search goes upwards, and ends at 1, where everything crosses in 16 bits. Raises `ConfigError` for a codec that cannot be
    used without INT4.
    """
    found, wanted = 0.0, _LOWEST
    while found < wanted:
        found = wanted
        chunk_tokens = lossy_chunk_tokens(layout, replace(rule, budget=found), slot_bytes, layout.block_size)
        least = minimum_budget(layout, rule, LONG_PROMPT_CHUNKS * chunk_tokens, chunk_tokens)
        wanted = min(1.0, math.ceil(least * 10**SHOWN_DIGITS) / 10**SHOWN_DIGITS)
    return found
