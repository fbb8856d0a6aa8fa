"""From the members' books to the question which pair serves a request. Chooses nothing.

It is asked for every request, while few members have changed since the last one: what is known of the others is kept.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from protocol.layout import KvLayout
from protocol.request import GenerateRequest
from protocol.wire_rule import WireOffer, WireRule
from router.config import MAX_MOVES, READINESS_WINDOW_S, WORKER_TIMEOUT_S, RoutingPolicy
from router.fleet.cached_tokens import CachedTokens
from router.fleet.clients import DecodeClient, PrefillClient
from router.fleet.member import Member
from router.fleet.network_view import link_rate
from scheduling.pair_cost import ASSUMED_CHUNK_TOKENS, DecodeLoad, LinkLoads, PairingQuestion, PrefillLoad

SIXTEEN_BIT_BYTES = 2


@dataclass(frozen=True, slots=True)
class RoutingRules:
    """How a fleet chooses, and what it puts up with. Prompts shorter than `min_remote_tokens` stay where they are decoded;
    `chunk_tokens` are computed, and then sent, at a time; `wire` is how KV is written; `link_bytes_per_second` is what an
    operator says that every link moves, None to go by measurement. `clock` gives seconds.

    A worker is taken for gone after `worker_timeout_s` without an answer, a request goes on elsewhere `max_moves` times at
    most, and a generation counts as proof of readiness for `readiness_window_s`.
    """

    policy: RoutingPolicy = RoutingPolicy.JOINT
    min_remote_tokens: int = 0
    chunk_tokens: int = ASSUMED_CHUNK_TOKENS
    wire: WireOffer = field(default_factory=WireOffer)
    link_bytes_per_second: int | None = None
    clock: Callable[[], float] = time.monotonic
    worker_timeout_s: float = WORKER_TIMEOUT_S
    max_moves: int = MAX_MOVES
    readiness_window_s: float = READINESS_WINDOW_S


def question_of(
    request: GenerateRequest,
    prefills: Sequence[Member[PrefillClient]],
    decodes: Sequence[Member[DecodeClient]],
    rules: RoutingRules,
    ordinal: int,
) -> PairingQuestion:
    """The question, of the workers that may be chosen, as if no worker had anything of the prompt."""
    names = tuple([one.name for one in decodes])
    shape = len(prefills), len(names)
    rates = b"".join([_packed_link_rates(one, names, rules.link_bytes_per_second) for one in prefills])
    backlogs = b"".join([_packed_backlogs(one, names) for one in prefills])
    return PairingQuestion(
        num_prompt_tokens=request.num_prompt_tokens,
        num_held_tokens=request.max_held_tokens,
        prefills=[_prefill_load(one) for one in prefills],
        decodes=[_decode_load(one) for one in decodes],
        links=LinkLoads(np.frombuffer(rates).reshape(shape), np.frombuffer(backlogs).reshape(shape)),
        min_remote_tokens=rules.min_remote_tokens,
        wire_bytes_per_token=lossy_bytes_per_token(request, decodes[0].description.layout, rules.wire)
        if decodes
        else None,
        chunk_tokens=rules.chunk_tokens,
        is_sent=request.stop.max_tokens > 1,
        ordinal=ordinal,
    )


def with_cached(question: PairingQuestion, cached: CachedTokens) -> PairingQuestion:
    """The question when workers have some of the prompt."""
    if not cached.read and not cached.landed:
        return question
    read, landed = cached.read, cached.landed_from_any()
    return replace(
        question,
        prefills=[
            replace(one, num_cached_tokens=read[one.name]) if one.name in read else one for one in question.prefills
        ],
        decodes=[
            replace(one, num_cached_tokens=read.get(one.name, 0), num_landed_tokens=landed.get(one.name, 0))
            if one.name in read or one.name in landed
            else one
            for one in question.decodes
        ],
    )


def wire_rule_of(request: GenerateRequest, wire: WireOffer) -> WireRule:
    """How the KV of a request is written whose budget was checked."""
    budget = request.kv_wire_budget
    return wire.rule if budget is None else wire.rule.with_budget(budget)


def lossy_bytes_per_token(request: GenerateRequest, layout: KvLayout, wire: WireOffer) -> float | None:
    """Bytes on the wire of one token's KV; None when it crosses as it is cached."""
    rule = wire_rule_of(request, wire)
    return None if rule.is_lossless else rule.budget * SIXTEEN_BIT_BYTES * layout.elements_per_token


def wire_bytes(
    request: GenerateRequest, sender: KvLayout, receiver: KvLayout, wire: WireOffer, first_token: int = 0
) -> float:
    """Bytes that a prompt's KV has on the wire from `first_token` on, as predicted."""
    per_token = lossy_bytes_per_token(request, receiver, wire)
    if per_token is None:
        per_token = float(min(sender.bytes_per_token, receiver.bytes_per_token))
    return per_token * (request.num_prompt_tokens - first_token)


def _prefill_load(member: Member[PrefillClient]) -> PrefillLoad:
    description, model, num_queued_tokens = member.description, member.prefill_time, member.num_queued_tokens

    def make() -> PrefillLoad:
        return PrefillLoad(
            name=member.name,
            model=model,
            num_queued_tokens=num_queued_tokens,
            kv_bytes_per_token=description.layout.bytes_per_token,
        )

    return member.prefill_load.of((description, model, num_queued_tokens), make)


def _decode_load(member: Member[DecodeClient]) -> DecodeLoad:
    description, model = member.description, member.prefill_time
    figures = member.num_active, member.num_held_tokens, member.num_queued_tokens, member.mean_stay_s

    def make() -> DecodeLoad:
        num_active, num_held_tokens, num_queued_tokens, mean_stay_s = figures
        return DecodeLoad(
            name=member.name,
            model=model,
            num_active=num_active,
            num_held_tokens=num_held_tokens,
            capacity_tokens=description.capacity_tokens,
            mean_stay_s=mean_stay_s,
            num_queued_tokens=num_queued_tokens,
            kv_bytes_per_token=description.layout.bytes_per_token,
        )

    return member.decode_load.of((description, model, *figures), make)


def _packed_link_rates(member: Member[PrefillClient], names: tuple[str, ...], given: int | None) -> bytes:
    """What the links to the decode workers move, a float64 each; as `given`, where it is."""
    links = member.links
    parts = names, given, member.status, *links, *links.values()

    def make() -> bytes:
        return _packed([link_rate(member, name, given).bytes_per_second for name in names])

    return member.packed_link_rates.of(parts, make)


def _packed_backlogs(member: Member[PrefillClient], names: tuple[str, ...]) -> bytes:
    """Bytes that are still to cross to the decode workers, a float64 each."""
    backlogs = member.backlog_bytes
    parts = names, *backlogs, *backlogs.values()
    return member.packed_backlogs.of(parts, lambda: _packed([backlogs.get(name, 0.0) for name in names]))


def _packed(figures: list[float]) -> bytes:
    return struct.pack(f"{len(figures)}d", *figures)
