"""The arithmetic of the symmetric codecs in torch, on any device: the reference that other implementations agree with."""

from __future__ import annotations

import torch

from transfer.codec.bits import join_low_nibbles, split_nibbles
from transfer.codec.quantise import (
    fit_scale,
    fp8_codes,
    fp8_values,
    largest_magnitude,
    require_within,
    signed_codes,
    signed_values,
)
from transfer.codec.rows import KEY, VALUE, indices, split
from transfer.codec.symmetric_parts import FOUR_BIT_OFFSET, Coding, Tier


class TorchSymmetric:
    """A call of torch for every step."""

    def encode(self, tier: Tier, limit: float) -> None:
        """As `SymmetricOperations.encode`."""
        places = _places(tier)
        for layers in tier.rows.blocks():
            keys, values = (_codes(tier, places, layers, which, limit) for which in (KEY, VALUE))
            if tier.coding is Coding.SIGNED_4:
                tier.segment[layers] = join_low_nibbles(keys, values)
            else:
                tier.segment[layers, KEY], tier.segment[layers, VALUE] = keys, values

    def decode(self, tier: Tier) -> None:
        """As `SymmetricOperations.decode`."""
        places = _places(tier)
        for layers in tier.rows.blocks():
            part = tier.segment[layers]
            both = split_nibbles(part) if tier.coding is Coding.SIGNED_4 else (part[:, KEY], part[:, VALUE])
            for which, codes in zip((KEY, VALUE), both, strict=True):
                scale = tier.scales[layers, which].index_select(1, places)
                tier.rows.write(layers, which, _values(tier.coding, split(codes, 2, scale.shape[2]), scale).flatten(2))


def _places(tier: Tier) -> torch.Tensor:
    return indices(tier.places, tier.segment.device)


def _codes(tier: Tier, places: torch.Tensor, layers: slice, which: int, limit: float) -> torch.Tensor:
    """uint8 `[layer, token, D]`; the scales that they need are stored."""
    heads = split(tier.rows.read(layers, which), 2, tier.scales.shape[3])
    magnitude = largest_magnitude(heads, 3)
    scale = fit_scale(magnitude, tier.coding.max_code)
    if limit < torch.inf:
        require_within(-magnitude, magnitude, limit)
    tier.scales[layers, which].index_copy_(1, places, scale)
    if tier.coding is Coding.FLOAT_8:
        return fp8_codes(heads, scale).view(torch.uint8).flatten(2)
    signed = signed_codes(heads, scale)
    return (signed.add_(FOUR_BIT_OFFSET) if tier.coding is Coding.SIGNED_4 else signed).view(torch.uint8).flatten(2)


def _values(coding: Coding, codes: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    if coding is Coding.FLOAT_8:
        return fp8_values(codes, scale)
    signed = codes.view(torch.int8)
    return signed_values(signed.sub(FOUR_BIT_OFFSET) if coding is Coding.SIGNED_4 else signed, scale)
