"""A second, slow reader of chunks, written from the document alone: what the codecs must agree with, value for value."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from protocol.layout import KvLayout

Floats = npt.NDArray[np.float32]
CHANNEL, FP8 = 1, 5


@dataclass(frozen=True, slots=True)
class Found:
    """All values of a chunk, `[layer, k|v, token, head, dim]`, the size of one step of each, and the tokens' tiers."""

    values: Floats
    steps: Floats
    tiers: npt.NDArray[np.uint8]


class Reader:
    """Takes arrays off a payload, one after the other, each part from a multiple of 64 bytes."""

    def __init__(self, chunk: bytes) -> None:
        self._payload = chunk[128:]
        self._at = 0

    def take(self, dtype: str, *shape: int) -> npt.NDArray[Any]:
        """The next array."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        found = np.frombuffer(self._payload[self._at : self._at + size], dtype=dtype).reshape(shape)
        self._at += size
        return found

    def pad(self) -> None:
        """To the next part; what is skipped is zero."""
        end = -(-self._at // 64) * 64
        assert not any(self._payload[self._at : end])
        self._at = end


def read(chunk: bytes, layout: KvLayout) -> Found:
    """Everything in a chunk of a lossy codec."""
    num_tokens = int.from_bytes(chunk[48:52], "little")
    is_bfloat16, codec = chunk[52] == 3, chunk[53]
    reader = Reader(chunk)
    halves = reader.take("<u1", (num_tokens + 1) // 2)
    reader.pad()
    tiers = np.array([halves[token // 2] >> 4 * (token % 2) & 15 for token in range(num_tokens)], dtype=np.uint8)
    shape = (layout.num_layers, 2, num_tokens, layout.num_kv_heads, layout.head_dim)
    found = Found(np.zeros(shape, np.float32), np.zeros(shape, np.float32), tiers)
    (_read_channel if codec == CHANNEL else _read_symmetric)(reader, layout, found, codec, is_bfloat16)
    return found


def _read_exact(reader: Reader, found: Found, is_bfloat16: bool) -> None:
    exact = np.flatnonzero(found.tiers == 1)
    num_layers, two, _, num_heads, head_dim = found.values.shape
    if len(exact):
        raw = reader.take("<u2", num_layers, two, len(exact), num_heads, head_dim)
        wide = (raw.astype(np.uint32) << 16).view(np.float32) if is_bfloat16 else raw.view(np.float16)
        found.values[:, :, exact] = wide
        reader.pad()


def groups(num_tokens: int) -> Iterator[range]:
    """The tokens of each group."""
    last = max(1, (num_tokens + 32) // 64) - 1
    for group in range(last + 1):
        yield range(group * 64, num_tokens if group == last else (group + 1) * 64)


def _read_channel(reader: Reader, layout: KvLayout, found: Found, codec: int, is_bfloat16: bool) -> None:
    num_layers, num_heads, dim = layout.num_layers, layout.num_kv_heads, layout.head_dim
    coded = np.flatnonzero(found.tiers != 1)
    num_coded, num_groups = len(coded), len(list(groups(len(coded)))) if len(coded) else 0
    key_min, key_step = (reader.take("<f2", num_layers, num_groups, num_heads, dim) for _ in range(2))
    value_min, value_step = (reader.take("<f2", num_layers, num_coded, num_heads) for _ in range(2))
    reader.pad()
    _read_exact(reader, found, is_bfloat16)
    base = reader.take("<u1", num_layers, num_coded, num_heads, dim)
    reader.pad()
    fraction = np.zeros((num_layers, 2, num_coded, num_heads * dim))
    num_planes = 6 - found.tiers[coded].astype(int)
    for plane in range(1, 5):
        having = np.flatnonzero(num_planes >= plane)
        elements = len(having) * num_heads * dim
        quarter = -(-elements // 4)
        packed = reader.take("<u1", num_layers, quarter)
        reader.pad()
        for which in range(2):
            bits = np.concatenate([packed >> 4 * which + part & 1 for part in range(4)], axis=1)[:, :elements]
            fraction[:, which, having] += bits.reshape(num_layers, len(having), num_heads * dim) * 2.0**-plane
    fraction += 2.0 ** -(num_planes[None, None, :, None] + 1.0) - 0.5
    fraction = fraction.reshape(num_layers, 2, num_coded, num_heads, dim)
    grids = np.zeros((2, num_layers, 2, num_coded, num_heads, dim), dtype=np.float64)
    for group, tokens in enumerate(groups(num_coded) if num_coded else ()):
        grids[0, :, 0, tokens], grids[1, :, 0, tokens] = key_min[:, group], key_step[:, group]
    grids[0, :, 1], grids[1, :, 1] = value_min[..., None], value_step[..., None]
    nibbles = np.stack([base & 15, base >> 4], axis=1)
    num_parts = 2.0 ** num_planes[None, None, :, None, None]
    part = (fraction + 0.5) * num_parts - 0.5
    lowest, highest = part / (2 * num_parts - 1), 15 - (num_parts - 1 - part) / (2 * num_parts - 1)
    codes = np.where(nibbles == 0, lowest, np.where(nibbles == 15, highest, nibbles + fraction))
    found.values[:, :, coded] = grids[0] + grids[1] * codes
    found.steps[:, :, coded] = grids[1]


def _read_symmetric(reader: Reader, layout: KvLayout, found: Found, codec: int, is_bfloat16: bool) -> None:
    num_layers, num_heads, dim = layout.num_layers, layout.num_kv_heads, layout.head_dim
    coded = np.flatnonzero(found.tiers != 1)
    scales = reader.take("<f2", num_layers, 2, len(coded), num_heads)
    found.steps[:, :, coded] = scales[..., None]
    reader.pad()
    _read_exact(reader, found, is_bfloat16)
    eight, four = np.flatnonzero(found.tiers == 2), np.flatnonzero(found.tiers == 6)
    raw = reader.take("<u1", num_layers, 2, len(eight), num_heads, dim)
    codes = np.vectorize(_e4m3, otypes=[np.float32])(raw) if codec == FP8 and raw.size else raw.view(np.int8)
    found.values[:, :, eight] = codes * found.steps[:, :, eight]
    reader.pad()
    nibbles = reader.take("<u1", num_layers, len(four), num_heads, dim)
    both = np.stack([nibbles & 15, nibbles >> 4], axis=1).astype(np.float32) - 8
    found.values[:, :, four] = both * found.steps[:, :, four]


def _e4m3(byte: int) -> float:
    sign, exponent, fraction = byte >> 7, byte >> 3 & 15, byte & 7
    size = fraction / 8 * 2.0**-6 if exponent == 0 else (1 + fraction / 8) * 2.0 ** (exponent - 7)
    return -size if sign else size
