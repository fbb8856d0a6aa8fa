"""The cost of every pair of workers for one prompt, and the pair with the least. Pure: loads in, a choice out.

The cost of a prefill worker P and a decode worker D is the predicted time to the first decode step,

    max(prefill queue + prefill, link ready) + tail + wait for a decode slot

where the link is ready once it has moved what is under way on it and all of this prompt but its tail, and the tail is the
last chunk, which cannot leave before it was computed. D reading the prompt itself is one more candidate, without a link but
with a price (`_local_price`). Does not know where the figures come from.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from scheduling.prefill_time import MIN_PREDICTED_S, PrefillTimeModel, features_of

Costs = NDArray[np.float64]
ASSUMED_CHUNK_TOKENS = 256
"""What is sent at a time, unless the question says otherwise."""
ASSUMED_STAY_S = 1.0
"""How long a request keeps its place on D, before the first has left."""
TIE_SHARE, TIE_S = 0.05, 0.001
"""Costs nearer to each other than both are equal: no prediction is better than that, and the emptier worker then wins."""
NEARLY_FULL = 0.95
LEAST_BYTES_PER_SECOND = 1.0
"""A link that is there counts as no slower."""
_READER, _PLACE = struct.Struct("9d"), struct.Struct("5d")


@dataclass(frozen=True, slots=True)
class PrefillLoad:
    """`num_queued_tokens` prompt tokens are under way there, `num_cached_tokens` of this prompt are in its cache, and a token
    of its cache has `kv_bytes_per_token`.

    `reader` are the figures once more, packed when the load is made: whoever asks often keeps the loads that did not
    change, and the choice then reads all workers at once.
    """

    name: str
    model: PrefillTimeModel
    num_queued_tokens: int = 0
    num_cached_tokens: int = 0
    kv_bytes_per_token: float = 0.0
    reader: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reader", _packed_reader(self))


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """`num_active` requests are under way there, `num_held_tokens` of its `capacity_tokens` are spoken for, and a request
    stays `mean_stay_s`. `num_queued_tokens` are those of prompts that it reads itself; of this one it would not have to read
    `num_cached_tokens`, and `num_landed_tokens` would not have to cross: it has their KV as it would land. `reader` and
    `place` are the figures once more, packed.
    """

    name: str
    model: PrefillTimeModel
    num_active: int
    num_held_tokens: int
    capacity_tokens: int
    mean_stay_s: float = ASSUMED_STAY_S
    num_queued_tokens: int = 0
    num_cached_tokens: int = 0
    num_landed_tokens: int = 0
    kv_bytes_per_token: float = 0.0
    reader: bytes = field(init=False, repr=False, compare=False)
    place: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "reader", _packed_reader(self))
        figures = self.num_active, self.num_held_tokens, self.capacity_tokens, self.mean_stay_s, self.num_landed_tokens
        object.__setattr__(self, "place", _PLACE.pack(*figures))


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
    """Seconds: `remote[prefill, decode]`, infinite without a link or below the threshold, and `local[decode]`. `table` are
    both, `local` in its last row. `shares[decode]` is how full each would be of its capacity.
    """

    table: Costs
    shares: Costs

    @property
    def remote(self) -> Costs:
        """Of the pairs."""
        return self.table[:-1]

    @property
    def local(self) -> Costs:
        """Of the decode workers alone."""
        last: Costs = self.table[-1]
        return last


def least_cost(question: PairingQuestion) -> Pair | None:
    """The candidate with the least cost; None without a decode worker.

    Among equal ones (`TIE_SHARE`, `TIE_S`) a pair comes before a decode worker alone, then the emptier decode worker, then
    the prefill worker with the shorter queue, of which the less is known, and the first by name.
    """
    if not question.decodes:
        return None
    costs = pair_costs(question)
    least = float(costs.table.min())
    rows, columns = (costs.table <= least + max(TIE_S, TIE_SHARE * least)).nonzero()
    local_row = len(question.prefills)
    if rows[0] == local_row:
        return Pair(None, question.decodes[_emptiest(question, columns, costs.shares)].name)
    if rows[-1] == local_row:
        is_pair = rows < local_row
        rows, columns = rows[is_pair], columns[is_pair]
    column = _emptiest(question, columns, costs.shares)
    prefills = [question.prefills[row] for row in rows[columns == column].tolist()]
    prefill = min(prefills, key=lambda one: (one.num_queued_tokens, one.model.num_samples, one.name))
    return Pair(prefill.name, question.decodes[column].name)


def pair_costs(question: PairingQuestion) -> PairCosts:
    """The costs of all candidates. Needs at least one decode worker."""
    num_prefills = len(question.prefills)
    readers = _readers(question)
    needed = max(1, question.num_held_tokens)
    num_active, held, capacity, stay_s, landed = _unpacked([one.place for one in question.decodes], _PLACE)
    shares = (held + needed) / np.maximum(1.0, capacity)
    table = np.empty((num_prefills + 1, len(question.decodes)))
    table[-1] = readers.queue_s[num_prefills:] + readers.own_s[num_prefills:] * _local_price(num_active)
    remote = table[:-1]
    if question.is_local_only:
        remote.fill(math.inf)
    elif num_prefills:
        _remote_s(question, readers, landed, remote)
    table += slot_waits_s(shares, capacity / needed, stay_s)
    return PairCosts(table, shares)


def emptiness(load: DecodeLoad, num_held_tokens: int) -> tuple[float, int]:
    """How full D would be, as a share of its capacity, then how many requests it serves: the smaller, the emptier."""
    return (load.num_held_tokens + num_held_tokens) / max(1, load.capacity_tokens), load.num_active


def _emptiest(question: PairingQuestion, columns: NDArray[np.intp], shares: Costs) -> int:
    """Of the decode workers in `columns`, where one may be named more than once, by `emptiness`."""
    candidates = shares[columns]
    emptiest: list[int] = columns[candidates == candidates.min()].tolist()
    return min(set(emptiest), key=lambda column: (question.decodes[column].num_active, question.decodes[column].name))


def slot_waits_s(shares: Costs, num_slots: Costs, stay_s: Costs) -> Costs:
    """Predicted wait until each D has room for the request, which has room for `num_slots` such ones and would be full to
    `shares`.

    D is a queue with as many servers as such requests fit: Sakasegawa's approximation of the mean wait (Annals of the
    Institute of Statistical Mathematics 29, 1977) up to where it is nearly full; what is over that leaves at the rate at
    which D empties.
    """
    num_slots = np.maximum(1.0, num_slots)
    usual = np.minimum(shares, NEARLY_FULL)
    queue = usual ** (np.sqrt(2.0 * num_slots + 2.0) - 1.0) / (num_slots * (1.0 - usual))
    waits: Costs = stay_s * (queue + np.maximum(0.0, shares - 1.0))
    return waits


def _local_price(num_active: Costs) -> Costs:
    """How many times the seconds count in which D reads the prompt itself.

    While it does, nobody whom it serves gets a token at its usual pace. So they count once for the request, once for the
    place in the batch that it takes meanwhile, and once for every request that D serves. An idle D therefore never beats an
    idle P of the same speed on a link that keeps up.
    """
    return 2.0 + num_active


@dataclass(frozen=True, slots=True, eq=False)
class _Readers:
    """All workers as readers of the prompt, prefill workers first: seconds of the prompt itself (`PrefillTimeModel.predict_s`)
    and of the queue before it, bytes of a cached token.
    """

    own_s: Costs
    queue_s: Costs
    kv_bytes: Costs


def _readers(question: PairingQuestion) -> _Readers:
    """One that was never timed counts as the fastest that was, so that it is tried; a prefill worker's time goes first."""
    loads: list[PrefillLoad | DecodeLoad] = [*question.prefills, *question.decodes]
    table = _unpacked([one.reader for one in loads], _READER)
    weights, (num_samples, cached, cached_pairs, queued, kv_bytes) = table[:4], table[4:]
    _, tokens, pairs, _ = whole = features_of(question.num_prompt_tokens, 0, 0)
    is_timed = num_samples > 0
    timed = is_timed.nonzero()[0]
    if 0 < timed.size < len(loads):
        if timed[0] < len(question.prefills):
            timed = timed[timed < len(question.prefills)]
        pioneer = timed[(whole @ weights[:, timed]).argmin()]
        weights = np.where(is_timed, weights, weights[:, pioneer, np.newaxis])
    fixed_s, token_s, pair_s, queued_s = weights
    # The pairs of the computed tokens are those of the whole prompt without those of its cached beginning.
    own_s = np.maximum(fixed_s + token_s * (tokens - cached) + pair_s * (pairs - cached_pairs), MIN_PREDICTED_S)
    return _Readers(own_s, queued_s * queued, kv_bytes)


def _remote_s(question: PairingQuestion, readers: _Readers, landed: Costs, remote: Costs) -> None:
    """Writes into `remote` when the KV of the whole prompt is on D, infinite without a link, `[prefill, decode]`.

    What D has as it would land does not cross.
    """
    num_prefills = len(question.prefills)
    num_tokens = question.num_prompt_tokens if question.is_sent else 0
    num_sent = np.maximum(num_tokens - landed, 0.0)
    num_last = np.minimum(num_sent, question.chunk_tokens)
    per_token: Costs | float
    if question.wire_bytes_per_token is None:
        per_token = np.minimum(readers.kv_bytes[:num_prefills, np.newaxis], readers.kv_bytes[num_prefills:])
    else:
        per_token = question.wire_bytes_per_token
    links = question.links
    rates = np.maximum(links.bytes_per_second, LEAST_BYTES_PER_SECOND)
    token_s = per_token / rates
    ready_s = links.backlog_bytes / rates
    ready_s += token_s * (num_sent - num_last)
    read_s = readers.own_s[:num_prefills] + readers.queue_s[:num_prefills]
    np.maximum(read_s[:, np.newaxis], ready_s, out=remote)
    token_s *= num_last
    remote += token_s
    remote[links.bytes_per_second <= 0] = math.inf


def _unpacked(rows: Sequence[bytes], row: struct.Struct) -> Costs:
    """`[figure, worker]`."""
    return np.frombuffer(b"".join(rows)).reshape(len(rows), row.size // 8).T


def _packed_reader(load: PrefillLoad | DecodeLoad) -> bytes:
    _, cached, cached_pairs, queued = features_of(load.num_cached_tokens, 0, load.num_queued_tokens)
    figures = load.model.num_samples, cached, cached_pairs, queued, load.kv_bytes_per_token
    return _READER.pack(*load.model.weights, *figures)
