"""Matrix products with fixed weights: the one seam at which a device can bring a faster kernel.

Knows nothing of the model that the weights belong to.
"""

from __future__ import annotations

from typing import Protocol

import torch

from engine.packed_linear import HalfLinear, PackedLinear, can_halve, can_pack


class Linear(Protocol):
    """`x @ weight.T + bias` for a weight that was given once."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`[T, in]` to `[T, out]`, in the dtype of the weight. T is at least 1."""
        ...


class PlainLinear:
    """The product as torch computes it. The oracle of every faster one; keeps `weight` without a copy."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        self._weight = weight
        self._bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """`[T, in]` to `[T, out]`."""
        return torch.nn.functional.linear(x, self._weight, self._bias)


def make_plain_linear(weight: torch.Tensor, bias: torch.Tensor | None, device: torch.device) -> Linear:
    """`PlainLinear` on `device`: slower on the CPU, with the least rounding."""
    return PlainLinear(weight.to(device), None if bias is None else bias.to(device))


def make_linear(weight: torch.Tensor, bias: torch.Tensor | None, device: torch.device) -> Linear:
    """The fastest product on `device` for `weight` `[out, in]` and `bias` `[out]` or None, of the compute dtype.

    Equal to `PlainLinear` up to what rounding in a float32 sum costs. On the CPU torch's number of threads must be set
    before, and the caller should let go of `weight`, of which a packed copy is kept.
    """
    weight, bias = weight.to(device), None if bias is None else bias.to(device)
    if not can_pack(weight):
        return PlainLinear(weight, bias)
    return HalfLinear(weight, bias) if can_halve(weight) else PackedLinear(weight, bias)
