"""A tier of the symmetric codecs: its tokens' places in a pool, its scales, and how a value becomes a code."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch

from transfer.codec.quantise import MAX_4_BITS, MAX_8_BITS, MAX_FP8
from transfer.codec.rows import TokenRows

FOUR_BIT_OFFSET = 8
"""Added to codes of 4 bits, so that none is negative."""


class Coding(Enum):
    """How a quotient of value and scale is written; the value is the largest magnitude."""

    SIGNED_8 = MAX_8_BITS
    FLOAT_8 = MAX_FP8
    SIGNED_4 = MAX_4_BITS

    @property
    def max_code(self) -> float:
        """The magnitude that a scale maps the largest value to."""
        return float(self.value)


class Tier(NamedTuple):
    """The tokens of tier 2 or 6, n of them; m coded tokens in all."""

    coding: Coding
    rows: TokenRows
    scales: torch.Tensor  # float16 [L, k|v, m, H, 1]: of all coded tokens
    places: npt.NDArray[np.int64]  # [n]: which of those these are
    segment: torch.Tensor  # uint8: [L, k|v, n, D]; of 4 bits [L, n, D], low nibble K


class SymmetricOperations(Protocol):
    """What the codecs compute, over all layers of a tier that has at least one token."""

    def encode(self, tier: Tier, limit: float) -> None:
        """Fills the segment, and the tier's scales, from the pool. Values that are not finite leave a scale that is not.

        Raises `TransferError` when a value is beyond a finite `limit`, or is no number.
        """
        ...

    def decode(self, tier: Tier) -> None:
        """Writes the tokens into the pool."""
        ...
