"""Root-mean-square normalisation (Zhang and Sennrich, 2019). Knows nothing of where in a model it stands."""

from __future__ import annotations

import torch


class RmsNorm:
    """`x / sqrt(mean(x * x) + epsilon) * weight` over the last dimension, in float32.

    `weight` is `[width]`, or `[H, width]` when each of the H rows of `x` `[T, H, width]` has its own.
    """

    def __init__(self, weight: torch.Tensor, epsilon: float) -> None:
        width = weight.shape[-1]
        # With both scaled by the width, the sum of squares stands in for their mean: two operations fewer per call.
        self._weight = weight.float() * width**0.5
        self._epsilon = torch.tensor(epsilon * width, dtype=torch.float32, device=weight.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """A new tensor of the shape and dtype of `x`."""
        wide = x.float()
        length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
        inverse = torch.addcmul(self._epsilon, length, length).rsqrt_()
        return (wide * inverse).mul_(self._weight).to(x.dtype)
