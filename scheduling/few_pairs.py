"""The choice of a pair as plain loops, a candidate at a time: the same answers as `scheduling.pair_cost`, which it is tested
against. With few pairs it is the quicker of the two: one call of NumPy costs as much as many steps here, and choosing takes
dozens. Pure.
"""

from __future__ import annotations

import math
from dataclasses import replace

from scheduling.pair_cost import (
    LEAST_BYTES_PER_SECOND,
    NEARLY_FULL,
    TIE_S,
    TIE_SHARE,
    DecodeLoad,
    Pair,
    PairingQuestion,
    PrefillLoad,
    emptiness,
)
from scheduling.prefill_time import MIN_PREDICTED_S, PrefillTimeModel, PromptWork

MAX_FEW_PAIRS = 6
"""Up to here the loops are quicker: 12 us against 77 for one pair, 28 against 79 for four, 107 against 83 for sixteen."""
Candidate = tuple[int | None, int]
"""Indices of the prefill worker, None where the decode worker reads the prompt itself, and of the decode worker."""


def plain_costs(question: PairingQuestion) -> dict[Candidate, float]:
    """Seconds of every candidate that can be used."""
    costs: dict[Candidate, float] = {}
    reads_s = [sum(_read_s(question, prefill)) for prefill in question.prefills]
    for column, decode in enumerate(question.decodes):
        wait_s = _wait_s(decode, question.num_held_tokens)
        own_s, queue_s = _read_s(question, decode)
        costs[None, column] = queue_s + own_s * (2 + decode.num_active) + wait_s
        for row, prefill in enumerate(question.prefills):
            rate = float(question.links.bytes_per_second[row, column])
            if rate > 0 and not question.is_local_only:
                rate = max(rate, LEAST_BYTES_PER_SECOND)
                backlog = float(question.links.backlog_bytes[row, column])
                before, tail = _bytes_to_send(question, prefill, decode)
                costs[row, column] = max(reads_s[row], (backlog + before) / rate) + tail / rate + wait_s
    return costs


def is_for_few(question: PairingQuestion) -> bool:
    """Whether there are so few pairs that `plain_choice` is quicker than `least_cost`."""
    return len(question.prefills) * len(question.decodes) <= MAX_FEW_PAIRS and len(question.decodes) <= MAX_FEW_PAIRS


def plain_choice(question: PairingQuestion) -> Pair | None:
    """As `least_cost`."""
    if not question.decodes:
        return None
    costs = plain_costs(question)
    least = min(costs.values())
    bound = least + max(TIE_S, TIE_SHARE * least)

    def key(candidate: Candidate) -> tuple[object, ...]:
        row, column = candidate
        decode = question.decodes[column]
        last = () if row is None else _lesser_known(question.prefills[row])
        return row is None, *emptiness(decode, question.num_held_tokens), decode.name, *last

    row, column = min((candidate for candidate, cost in costs.items() if cost <= bound), key=key)
    return Pair(None if row is None else question.prefills[row].name, question.decodes[column].name)


def _lesser_known(prefill: PrefillLoad) -> tuple[int, int, str]:
    return prefill.num_queued_tokens, prefill.model.num_samples, prefill.name


def _read_s(question: PairingQuestion, load: PrefillLoad | DecodeLoad) -> tuple[float, float]:
    """Of the prompt itself and of the queue before it."""
    model = _believed(question, load.model)
    work = PromptWork(question.num_prompt_tokens - load.num_cached_tokens, load.num_cached_tokens)
    own_s = max(model.predict_s(work), MIN_PREDICTED_S)
    return own_s, model.weights[3] * load.num_queued_tokens / 1e3


def _believed(question: PairingQuestion, model: PrefillTimeModel) -> PrefillTimeModel:
    """The fastest that was timed, prefill workers first, in place of one that was not."""
    if model.num_samples:
        return model
    for loads in (question.prefills, question.decodes):
        timed = [load.model for load in loads if load.model.num_samples]
        if timed:
            work = PromptWork(question.num_prompt_tokens)
            fastest = min(timed, key=lambda one: one.predict_s(work))
            return replace(model, weights=fastest.weights)
    return model


def _wait_s(decode: DecodeLoad, num_held_tokens: int) -> float:
    num_slots = max(1.0, decode.capacity_tokens / max(1, num_held_tokens))
    share, _ = emptiness(decode, num_held_tokens)
    usual = min(share, NEARLY_FULL)
    queue: float = usual ** (math.sqrt(2 * (num_slots + 1)) - 1) / (num_slots * (1 - usual))
    return decode.mean_stay_s * (queue + max(0.0, share - 1))


def _bytes_to_send(question: PairingQuestion, prefill: PrefillLoad, decode: DecodeLoad) -> tuple[float, float]:
    """Before the last chunk, and of that."""
    per_token = question.wire_bytes_per_token
    if per_token is None:
        per_token = min(prefill.kv_bytes_per_token, decode.kv_bytes_per_token)
    num_sent = max(0, question.num_prompt_tokens - decode.num_landed_tokens) if question.is_sent else 0
    num_last = min(num_sent, question.chunk_tokens)
    return per_token * (num_sent - num_last), per_token * num_last
