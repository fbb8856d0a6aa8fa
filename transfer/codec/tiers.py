"""The precision of each token of a chunk: codes, counts, and the 4-bit map that carries them. See `format`."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

NUM_TIERS = 8
NUM_PLANES = 4
TIER_NATIVE = 0
TIER_16_BITS = 1
TIER_8_BITS = 2
TIER_4_BITS = 6

Tiers: TypeAlias = npt.NDArray[np.uint8]
"""`[num_tokens]`: one code a token."""


def uniform(num_tokens: int, tier: int) -> Tiers:
    """All tokens at one tier."""
    return np.full(num_tokens, tier, dtype=np.uint8)


def tier_of_planes(num_planes: npt.NDArray[np.int64]) -> Tiers:
    """The tier of tokens that have a base and so many planes, 0 to 4."""
    return (TIER_4_BITS - num_planes).astype(np.uint8)


def planes_of_tier(tiers: Tiers) -> npt.NDArray[np.int64]:
    """Planes of tokens at tiers 2 to 6: 4 to 0."""
    return TIER_4_BITS - tiers.astype(np.int64)


def tier_counts(tiers: Tiers) -> tuple[int, ...]:
    """Tokens at each of the `NUM_TIERS` tiers."""
    return tuple(np.bincount(tiers, minlength=NUM_TIERS).tolist())


def write_map(tiers: Tiers) -> bytes:
    """The precision map, unpadded."""
    even = tiers if len(tiers) % 2 == 0 else np.append(tiers, np.uint8(0))
    return (even[0::2] | even[1::2] << 4).astype(np.uint8).tobytes()


def read_map(raw: bytes | memoryview, num_tokens: int) -> Tiers:
    """The tiers in an unpadded map; codes may be any of 0 to 15."""
    both = np.frombuffer(raw, dtype=np.uint8)
    halves = np.empty(2 * len(both), dtype=np.uint8)
    halves[0::2], halves[1::2] = both & 0xF, both >> 4
    return halves[:num_tokens]
