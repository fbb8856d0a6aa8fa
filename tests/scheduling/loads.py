"""Loads of workers and questions about them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduling.pair_cost import DecodeLoad, LinkLoads, PairingQuestion, PrefillLoad
from scheduling.prefill_time import PrefillTimeModel

KV_BYTES = 1000.0
Links = dict[tuple[str, str], tuple[float, float]]
"""By pair: bytes a second, and bytes under way."""


def prefill(name: str, num_queued_tokens: int = 0, tokens_per_second: float = 1000.0) -> PrefillLoad:
    """A prefill worker that was never timed."""
    model = PrefillTimeModel.stated(tokens_per_second)
    return PrefillLoad(name, model, num_queued_tokens, kv_bytes_per_token=KV_BYTES)


def decode(name: str, num_active: int = 0, num_held_tokens: int = 0, capacity_tokens: int = 10_000) -> DecodeLoad:
    """A decode worker that was never timed."""
    model = PrefillTimeModel.stated()
    return DecodeLoad(name, model, num_active, num_held_tokens, capacity_tokens, kv_bytes_per_token=KV_BYTES)


def linked(prefills: Sequence[PrefillLoad], decodes: Sequence[str], rate: float = 1e9) -> Links:
    """Everybody with everybody, nothing under way."""
    return {(one.name, name): (rate, 0.0) for one in prefills for name in decodes}


def question(
    prefills: Sequence[PrefillLoad],
    decodes: Sequence[DecodeLoad],
    links: Links | None = None,
    num_prompt_tokens: int = 100,
) -> PairingQuestion:
    """A prompt to be placed; everybody is linked unless `links` says otherwise."""
    if links is None:
        links = linked(prefills, [one.name for one in decodes])
    figures = [links.get((one.name, other.name), (0.0, 0.0)) for one in prefills for other in decodes]
    table = np.array(figures, dtype=np.float64).reshape(len(prefills), len(decodes), 2)
    return PairingQuestion(
        num_prompt_tokens, num_prompt_tokens, prefills, decodes, LinkLoads(table[..., 0], table[..., 1])
    )
