"""Codes of K and V to bytes and back, on any device: nibbles and bit planes, as `format` describes them."""

from __future__ import annotations

import torch

from transfer.codec.tiers import NUM_PLANES

_LOW, _HIGH = 0x0F, 0xF0
_BIT_OF_BOTH = 0x11
_PARTS = 4


def join_high_nibbles(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """uint8: K's high nibbles in the low ones, V's in the high ones. The base of refined codes."""
    return (keys >> 4).bitwise_or_(values & _HIGH)


def join_low_nibbles(keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """uint8: K's low nibbles in the low ones, V's in the high ones. The planes of refined codes, or codes of 4 bits."""
    return (keys & _LOW).bitwise_or_(values << 4)


def split_refined(base: torch.Tensor, rest: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """Refined codes of K and V from their joined halves; without a `rest` it is zero."""
    keys, values = base << 4, base & _HIGH
    if rest is not None:
        keys.bitwise_or_(rest & _LOW)
        values.bitwise_or_(rest >> 4)
    return keys, values


def split_nibbles(joined: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The low and the high nibbles, as uint8 of 0 to 15."""
    return joined & _LOW, joined >> 4


def pack_plane(rest: torch.Tensor, plane: int) -> torch.Tensor:
    """Plane 1 to 4 of joined low nibbles `[layer, element]`, uint8: bytes `[layer, ceil(element / 4)]`.

    Byte i has elements i, Q + i, 2Q + i, 3Q + i of K in its bits 0 to 3, of V in 4 to 7, Q being its row's length.
    """
    num_layers, num_elements = rest.shape
    length = -(-num_elements // _PARTS)
    if length * _PARTS != num_elements:
        rest = torch.nn.functional.pad(rest, (0, length * _PARTS - num_elements))
    bits = (rest >> NUM_PLANES - plane).bitwise_and_(_BIT_OF_BOTH).view(num_layers, _PARTS, length)
    packed = bits[:, 0].clone()
    for part in range(1, _PARTS):
        packed.bitwise_or_(bits[:, part] << part)
    return packed


def unpack_plane(packed: torch.Tensor, plane: int, num_elements: int) -> torch.Tensor:
    """The bits of one plane where `pack_plane` found them: uint8 `[layer, num_elements]`, to be or-ed with other planes."""
    num_layers, length = packed.shape
    parts = [packed] + [packed >> part for part in range(1, _PARTS)]
    bits = torch.stack(parts, dim=1).bitwise_and_(_BIT_OF_BOTH).bitwise_left_shift_(NUM_PLANES - plane)
    return bits.view(num_layers, length * _PARTS)[:, :num_elements]
