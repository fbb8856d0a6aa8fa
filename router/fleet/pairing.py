"""Which pair of workers serves a request. Pure: loads in, a choice out.

The cost of a pair is the predicted wait until its first decode step. `least_wait` is the first rule behind `PairPolicy`;
a joint cost with links and prefix hits takes its place without touching the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PrefillLoad:
    """`num_queued_tokens` prompt tokens are under way there; it computes `tokens_per_second` of them."""

    name: str
    num_queued_tokens: int
    tokens_per_second: float


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """`num_active` requests are under way there, and `num_held_tokens` of its `capacity_tokens` are spoken for."""

    name: str
    num_active: int
    num_held_tokens: int
    capacity_tokens: int


@dataclass(frozen=True, slots=True)
class Pair:
    """The choice. Without `prefill` the decode worker reads the prompt itself."""

    prefill: str | None
    decode: str


@dataclass(frozen=True, slots=True)
class PairingQuestion:
    """A prompt of `num_prompt_tokens` to be placed; `links` are the (prefill, decode) pairs that can exchange KV.

    Prompts shorter than `min_remote_tokens` are read where they are decoded.
    """

    num_prompt_tokens: int
    prefills: Sequence[PrefillLoad]
    decodes: Sequence[DecodeLoad]
    links: frozenset[tuple[str, str]]
    min_remote_tokens: int = 0


PairPolicy = Callable[[PairingQuestion], Pair | None]


def least_wait(question: PairingQuestion) -> Pair | None:
    """The linked pair with the least predicted wait; a decode worker alone when there is no pair; None without any.

    Predicted wait of a prefill worker: queued and own tokens over its rate. Of a decode worker: how full it would be, as
    a share of its capacity, then how many requests it serves, so that ties go to the emptier one.
    """
    decodes = sorted(question.decodes, key=lambda one: (_fullness(one, question.num_prompt_tokens), one.num_active))
    if not decodes:
        return None
    if question.num_prompt_tokens >= question.min_remote_tokens:
        pairs = [
            (_wait_s(prefill, question.num_prompt_tokens), rank, prefill.name, decode.name)
            for prefill in question.prefills
            for rank, decode in enumerate(decodes)
            if (prefill.name, decode.name) in question.links
        ]
        if pairs:
            _, _, prefill_name, decode_name = min(pairs)
            return Pair(prefill_name, decode_name)
    return Pair(None, decodes[0].name)


def _wait_s(load: PrefillLoad, num_prompt_tokens: int) -> float:
    return (load.num_queued_tokens + num_prompt_tokens) / load.tokens_per_second


def _fullness(load: DecodeLoad, num_prompt_tokens: int) -> float:
    return (load.num_held_tokens + num_prompt_tokens) / load.capacity_tokens
