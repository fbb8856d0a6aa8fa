"""What the shipping side is given and what it answers: values, and the interface of the codec that it calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from protocol.errors import KvferryError
from protocol.ticket import Ticket

ImportanceScores: TypeAlias = npt.NDArray[np.float32]
"""One number a token, from token 0 on: a larger one matters more. Finite, not negative, and never changed."""


class Packer(Protocol):
    """Writes a chunk of the cache as it crosses."""

    def pack(
        self,
        ticket: Ticket,
        chunk: int,
        block_ids: Sequence[int],
        slot: memoryview,
        importance: ImportanceScores | None = None,
    ) -> int:
        """Packs the chunk into `slot` by the ticket's rule and returns its length in bytes.

        `importance`, where it is given, reaches at least to the chunk's end; a lossless transfer has no use for it.
        """
        ...

    def bytes_by_tier(self) -> Mapping[str, int]:
        """Bytes of the chunks packed so far by their precision, `overhead` being what is no token's."""
        ...


@dataclass(frozen=True, slots=True)
class ShippingConfig:
    """`stall_s`: how long the decode worker may leave chunks unanswered before the transfer is given up, `test_stall_s`:
    the same of a link test. `pace_lapse_s`: how long a shared pace holds after it was ordered. Whoever ordered it may be gone,
    and must not slow a transfer down for ever; a pace that is to hold for longer is ordered again.
    """

    stall_s: float = 30.0
    test_stall_s: float = 5.0
    pace_lapse_s: float = 30.0


@dataclass(frozen=True, slots=True)
class HiddenBytes:
    """Bytes of prompts whose transfer ended well, each chunk counted once.

    `num_acknowledged`: all of them. `num_hidden`: those that the decode worker had already acknowledged when the prompt's
    first token was sampled, so that they cost no wait.
    """

    num_hidden: int = 0
    num_acknowledged: int = 0

    def plus(self, num_hidden: int, num_acknowledged: int) -> HiddenBytes:
        """The sum with one more transfer."""
        return HiddenBytes(self.num_hidden + num_hidden, self.num_acknowledged + num_acknowledged)


@dataclass(frozen=True, slots=True)
class ShipmentEnded:
    """The end of one opened ticket. Without `error` every chunk was taken."""

    ticket: Ticket
    error: KvferryError | None
    num_bytes: int
