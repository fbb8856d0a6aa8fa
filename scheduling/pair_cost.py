"""The cost of every pair of workers for one prompt, and the pair with the least. Pure: loads in, a choice out.

The cost of a prefill worker P and a decode worker D is the predicted time to the first decode step,

    max(prefill queue + prefill, link ready) + tail + wait for a decode slot

where the link is ready once it has moved what is under way on it and all of this prompt but its tail, and the tail is the
last chunk, which cannot leave before it was computed. D reading the prompt itself is one more candidate, without a link but
with a price (`_local_price`). Does not know where the figures come from.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduling.prefill_time import MIN_PREDICTED_S, PrefillTimeModel, PromptWork, features_of

Costs = NDArray[np.float64]
ASSUMED_CHUNK_TOKENS = 256
"""What is sent at a time, unless the question says otherwise."""
ASSUMED_STAY_S = 1.0
"""How long a request keeps its place on D, before the first has left."""
TIE_SHARE, TIE_S = 0.05, 0.001
"""Costs nearer to each other than both are equal: no prediction is better than that, and the emptier worker then wins."""
NEARLY_FULL = 0.95


@dataclass(frozen=True, slots=True)
class PrefillLoad:
    """`num_queued_tokens` prompt tokens are under way there, `num_cached_tokens` of this prompt are in its cache, and a token
    of its cache has `kv_bytes_per_token`.
    """

    name: str
    model: PrefillTimeModel
    num_queued_tokens: int = 0
    num_cached_tokens: int = 0
    kv_bytes_per_token: float = 0.0


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """`num_active` requests are under way there, `num_held_tokens` of its `capacity_tokens` are spoken for, and a request
    stays `mean_stay_s`. `num_queued_tokens` are those of prompts that it reads itself.
    """

    name: str
    model: PrefillTimeModel
    num_active: int
    num_held_tokens: int
    capacity_tokens: int
    mean_stay_s: float = ASSUMED_STAY_S
    num_queued_tokens: int = 0
    num_cached_tokens: int = 0
    kv_bytes_per_token: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class LinkLoads:
    """`[prefill, decode]` in the question's order: measured bytes a second, 0 for workers that cannot exchange KV, and bytes
    of other requests that are still to cross.
    """

    bytes_per_second: Costs
    backlog_bytes: Costs


@dataclass(frozen=True, slots=True)
class Pair:
    """The choice. Without `prefill` the decode worker reads the prompt itself."""

    prefill: str | None
    decode: str


@dataclass(frozen=True, slots=True, eq=False)
class PairingQuestion:
    """A prompt of `num_prompt_tokens` to be placed, which will hold `num_held_tokens` on D. Only workers that answer are in it.

    Prompts shorter than `min_remote_tokens` are read where they are decoded. `wire_bytes_per_token` is what crosses when KV
    is written lossily, None for the narrower of the two caches' own; `is_sent` is false when nothing crosses, because the
    first token is the last. `ordinal` counts the questions that were asked before.
    """

    num_prompt_tokens: int
    num_held_tokens: int
    prefills: Sequence[PrefillLoad]
    decodes: Sequence[DecodeLoad]
    links: LinkLoads
    min_remote_tokens: int = 0
    wire_bytes_per_token: float | None = None
    chunk_tokens: int = ASSUMED_CHUNK_TOKENS
    is_sent: bool = True
    ordinal: int = 0

    @property
    def is_local_only(self) -> bool:
        """Whether the prompt is too short to be read by a prefill worker."""
        return self.num_prompt_tokens < self.min_remote_tokens


@dataclass(frozen=True, slots=True, eq=False)
class PairCosts:
    """Seconds: `remote[prefill, decode]`, infinite without a link or below the threshold, and `local[decode]`."""

    remote: Costs
    local: Costs


def least_cost(question: PairingQuestion) -> Pair | None:
    """The candidate with the least cost; None without a decode worker.

    Among equal ones (`TIE_SHARE`, `TIE_S`) a pair comes before a decode worker alone, then the emptier decode worker, then
    the prefill worker with the shorter queue, of which the less is known, and the first by name.
    """
    if not question.decodes:
        return None
    costs = pair_costs(question)
    least = min(float(costs.remote.min(initial=math.inf)), float(costs.local.min()))
    bound = least + max(TIE_S, TIE_SHARE * least)
    is_equal = np.less_equal(costs.remote, bound)
    columns = np.logical_or.reduce(is_equal, axis=0)
    if not columns.any():
        return Pair(None, question.decodes[_emptiest(question, np.less_equal(costs.local, bound))].name)
    column = _emptiest(question, columns)
    prefills = [question.prefills[row] for row in _indices(is_equal[:, column])]
    prefill = min(prefills, key=lambda one: (one.num_queued_tokens, one.model.num_samples, one.name))
    return Pair(prefill.name, question.decodes[column].name)


def pair_costs(question: PairingQuestion) -> PairCosts:
    """The costs of all candidates. Needs at least one decode worker."""
    num_prefills, num_decodes = len(question.prefills), len(question.decodes)
    readers = _readers(question)
    own_s, queue_s = readers.seconds(question.num_prompt_tokens)
    wait_s = slot_waits_s(question)
    local = wait_s + queue_s[num_prefills:] + own_s[num_prefills:] * _local_price(question)
    if question.is_local_only or not num_prefills:
        return PairCosts(np.full((num_prefills, num_decodes), math.inf), local)
    is_linked = question.links.bytes_per_second > 0
    rates = np.where(is_linked, question.links.bytes_per_second, 1.0)
    before_tail_bytes, tail_bytes = _bytes_to_send(question, readers)
    read_s = (own_s + queue_s)[:num_prefills, np.newaxis]
    ready_s = (question.links.backlog_bytes + before_tail_bytes) / rates
    remote = np.maximum(read_s, ready_s) + tail_bytes / rates + wait_s
    return PairCosts(np.where(is_linked, remote, math.inf), local)


def slot_waits_s(question: PairingQuestion) -> Costs:
    """Predicted wait until each D has room for the request, `[decode]`.

    D is a queue with as many servers as such requests fit: Sakasegawa's approximation of the mean wait (Annals of the
    Institute of Statistical Mathematics 29, 1977) up to where it is nearly full; what is over that leaves at the rate at
    which D empties.
    """
    needed = max(1, question.num_held_tokens)
    figures: list[float] = []
    for one in question.decodes:
        figures += (one.num_held_tokens, one.capacity_tokens, one.mean_stay_s)
    held, capacity, stay_s = np.array(figures, dtype=np.float64).reshape(-1, 3).T
    num_slots = np.maximum(1.0, capacity / needed)
    share = (held + needed) / np.maximum(1.0, capacity)
    usual = np.minimum(share, NEARLY_FULL)
    queue = usual ** (np.sqrt(2.0 * (num_slots + 1.0)) - 1.0) / (num_slots * (1.0 - usual))
    waits: Costs = stay_s * (queue + np.maximum(0.0, share - 1.0))
    return waits


def emptiness(load: DecodeLoad, num_held_tokens: int) -> tuple[float, int]:
    """How full D would be, as a share of its capacity, then how many requests it serves: the smaller, the emptier."""
    return (load.num_held_tokens + num_held_tokens) / max(1, load.capacity_tokens), load.num_active


def _emptiest(question: PairingQuestion, is_candidate: NDArray[np.bool_]) -> int:
    def key(column: int) -> tuple[float, int, str]:
        load = question.decodes[column]
        return (*emptiness(load, question.num_held_tokens), load.name)

    return min(_indices(is_candidate), key=key)


def _indices(is_chosen: NDArray[np.bool_]) -> list[int]:
    indices: list[int] = is_chosen.nonzero()[0].tolist()
    return indices


def _local_price(question: PairingQuestion) -> Costs:
    """How many times the seconds count in which D reads the prompt itself, `[decode]`.

    While it does, nobody whom it serves gets a token at its usual pace. So they count once for the request, once for the
    place in the batch that it takes meanwhile, and once for every request that D serves. An idle D therefore never beats an
    idle P of the same speed on a link that keeps up.
    """
    return np.array([2.0 + one.num_active for one in question.decodes])


@dataclass(frozen=True, slots=True, eq=False)
class _Readers:
    """All workers as readers of the prompt, prefill workers first: a row each of `weights`, one figure each of the others."""

    weights: Costs
    num_cached: Costs
    num_queued: Costs
    kv_bytes: Costs

    def seconds(self, num_prompt_tokens: int) -> tuple[Costs, Costs]:
        """Of the prompt itself and of the queue before it: `PrefillTimeModel.predict_s` of all workers at once."""
        num_cached = np.minimum(self.num_cached, num_prompt_tokens - 1)
        _, tokens, pairs, queue = features_of(num_prompt_tokens - num_cached, num_cached, self.num_queued)
        fixed_s, token_s, pair_s, queued_s = self.weights
        return np.maximum(fixed_s + token_s * tokens + pair_s * pairs, MIN_PREDICTED_S), queued_s * queue


def _readers(question: PairingQuestion) -> _Readers:
    """One that was never timed counts as the fastest that was, so that it is tried; a prefill worker's time goes first."""
    figures: list[float] = []
    loads: list[PrefillLoad | DecodeLoad] = [*question.prefills, *question.decodes]
    for one in loads:
        model = one.model
        figures += model.weights
        figures += (model.num_samples, one.num_cached_tokens, one.num_queued_tokens, one.kv_bytes_per_token)
    table = np.array(figures, dtype=np.float64).reshape(-1, 8).T
    weights, num_samples = table[:4], table[4]
    if not num_samples.all() and num_samples.any():
        work = PromptWork(question.num_prompt_tokens)
        timed = [one.model for one in question.prefills if one.model.num_samples]
        timed = timed or [one.model for one in question.decodes if one.model.num_samples]
        pioneer = min(timed, key=lambda model: model.predict_s(work))
        weights = np.where(num_samples > 0, weights, np.array(pioneer.weights)[:, np.newaxis])
    return _Readers(weights, *table[5:])


def _bytes_to_send(question: PairingQuestion, readers: _Readers) -> tuple[Costs, Costs]:
    """Bytes of the prompt before its last chunk, and of that, `[prefill, decode]`; what D has in its cache does not cross."""
    num_prefills = len(question.prefills)
    if question.wire_bytes_per_token is None:
        per_token = np.minimum(readers.kv_bytes[:num_prefills, np.newaxis], readers.kv_bytes[num_prefills:])
    else:
        per_token = np.full((num_prefills, 1), question.wire_bytes_per_token)
    num_sent = np.maximum(question.num_prompt_tokens - readers.num_cached[num_prefills:], 0) * question.is_sent
    num_last = np.minimum(num_sent, question.chunk_tokens)
    return per_token * (num_sent - num_last), per_token * num_last
