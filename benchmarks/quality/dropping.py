"""The baseline that drops tokens: fewer of them cross, in 16 bits, and what was dropped does not exist for what follows.

A token that stays keeps its place: K is rotated for the position it was read at, and the continuation goes on at the position
after the whole context. Dropped tokens are left out of the attention itself, so no score, no window and no softmax has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
import numpy.typing as npt
import torch

from engine.attention.interface import AttentionBackend, StepAttention, StepMetadata
from engine.attention.reference import ReferenceAttention
from engine.batch import TokenImportance
from engine.engine import Engine
from engine.kv_cache import KvCache
from engine.model_config import ModelConfig
from protocol.errors import ConfigError, TransferError
from protocol.layout import KvLayout
from transfer.codec.budget import sixteen_bit_bytes
from transfer.codec.format import HEADER_BYTES
from transfer.codec.pool_view import PoolView
from transfer.codec.sizes import ALIGNMENT_BYTES

Places = npt.NDArray[np.int64]
"""`[K]`: positions of the tokens that stay, in ascending order."""

FIRST_SHARES = (0.0, 0.02, 0.125, 0.25, 0.5, 0.75)
"""What share of the tokens that stay are the first ones; 0.02 are a handful of sinks."""


class DropKind(StrEnum):
    """Which tokens stay: the first and the last of the context, or those that its last queries attend to most."""

    FIRST_AND_LAST = "first-and-last"
    WINDOW = "window"


class SelectiveEngine(Engine):
    """An engine that can be told which tokens of a context the next pass sees; otherwise it is like any other."""

    @classmethod
    def of(cls, engine: Engine) -> SelectiveEngine:
        """The same weights and cache. The engine that was given must not be used any more."""
        return cls(engine._decoder, engine.cache, SelectiveAttention(engine._attention, engine.config))

    def see_once(self, places: Places, num_context: int) -> None:
        """In the next pass, and only there, every sequence sees of its first `num_context` positions only `places`."""
        attention = self._attention
        if not isinstance(attention, SelectiveAttention):
            raise ConfigError("this engine was not made by SelectiveEngine.of: it cannot leave tokens out")
        attention.see_once(torch.from_numpy(places), num_context)


class SelectiveAttention:
    """Attends as `exact` does, but for a pass that must not see everything: that one goes by the book, over what it may see."""

    name = "selective"
    is_graph_safe = False

    def __init__(self, exact: AttentionBackend, config: ModelConfig) -> None:
        self._exact = exact
        self._reference = ReferenceAttention(config)
        self._seen: tuple[torch.Tensor, int] | None = None

    def see_once(self, places: torch.Tensor, num_context: int) -> None:
        """See `SelectiveEngine.see_once`."""
        self._seen = (places, num_context)

    def begin(self, metadata: StepMetadata, cache: KvCache) -> StepAttention:
        """One step. Raises `ConfigError` when it starts within the context that it is to see a part of."""
        if self._seen is None:
            return self._exact.begin(metadata, cache)
        (places, num_context), self._seen = self._seen, None
        if int(metadata.positions.min()) < num_context:
            raise ConfigError(f"only what follows a context of {num_context} tokens can see a part of it")
        step = self._reference.begin(metadata, cache)
        parts = []
        for sequence in step.sequences:
            new = torch.arange(num_context, len(sequence.slots))
            seen = torch.cat((places, new)).to(sequence.slots.device)
            hidden = {window: mask[:, seen] for window, mask in sequence.hidden.items()}
            parts.append(replace(sequence, slots=sequence.slots[seen], hidden=hidden))
        return replace(step, sequences=parts)


@dataclass(frozen=True, slots=True)
class DropCrossing:
    """Copies the tokens at `places` of the first `num_context`, in 16 bits, and lets the engine's next pass see no others."""

    engine: SelectiveEngine
    places: Places
    num_context: int

    def __call__(self, source: PoolView, target: PoolView) -> int:
        """The bytes that this takes. Raises `TransferError` for values that float16 cannot hold."""
        places = torch.from_numpy(self.places)
        from_slots = source.slots(0, self.num_context).cpu()[places].to(source.pool.device)
        to_slots = target.slots(0, self.num_context).cpu()[places].to(target.pool.device)
        rows = source.flat().index_select(1, from_slots)
        halves = rows.half() if rows.dtype == torch.float32 else rows
        if not bool(torch.isfinite(halves).all()):
            raise TransferError("the KV holds values that 16 bits cannot")
        target.flat().index_copy_(1, to_slots, halves.to(rows.dtype))
        self.engine.see_once(self.places, self.num_context)
        return bytes_of(self.engine.layout, len(self.places), self.num_context)


def bytes_of(layout: KvLayout, num_kept: int, num_context: int) -> int:
    """One chunk: a header, a bit a token that says which ones stay, and two bytes for each of their elements."""
    return HEADER_BYTES + _padded(-(-num_context // 8)) + _padded(sixteen_bit_bytes(layout, num_kept))


def num_kept(layout: KvLayout, num_context: int, budget: float) -> int:
    """How many tokens can stay. Raises `ConfigError` when the budget has no room for any."""
    allowed = math.floor(budget * sixteen_bit_bytes(layout, num_context))
    found = min((allowed - bytes_of(layout, 0, num_context)) // sixteen_bit_bytes(layout, 1), num_context)
    while found > 0 and bytes_of(layout, found, num_context) > allowed:
        found -= 1
    if found < 1:
        raise ConfigError(f"a budget of {budget:g} has no room for one of {num_context} tokens", param="budget")
    return found


def first_and_last(num_context: int, number: int, first_share: float) -> Places:
    """`number` positions: the first ones, `first_share` of them, and the last ones."""
    num_first = round(first_share * number)
    places = np.arange(num_context, dtype=np.int64)
    return np.concatenate((places[:num_first], places[num_context - (number - num_first) :]))


def most_important(importance: TokenImportance | Sequence[float], number: int, num_sinks: int) -> Places:
    """`number` positions: the first `num_sinks`, and of the others those that matter most; of equals, the earlier.

    Raises `ConfigError` when not even the sinks can stay.
    """
    if not 0 <= num_sinks <= number:
        raise ConfigError(f"{number} tokens can stay, {num_sinks} are sinks", param="budget")
    scores = np.asarray(importance, dtype=np.float64).copy()
    scores[:num_sinks] = np.inf
    found: Places = np.sort(np.argsort(-scores, kind="stable")[:number]).astype(np.int64)
    return found


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
