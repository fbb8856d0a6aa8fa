"""Rotary position embeddings (Su et al., RoFormer), with the frequency scaling of Llama 3 and the linear one.

Halves of a head are rotated against each other, as Hugging Face checkpoints have them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from engine.model_config import RopeScaling, RopeSpec


@dataclass(frozen=True, slots=True)
class Rotation:
    """One step's angles: `cos` and `sin` `[T, 1, head_dim]`; the first half of `sin` is negated already."""

    cos: torch.Tensor
    sin: torch.Tensor

    def apply(self, heads: torch.Tensor) -> torch.Tensor:
        """Rotates `[T, H, head_dim]`."""
        half = heads.shape[-1] // 2
        swapped = torch.cat((heads[..., half:], heads[..., :half]), dim=-1)
        return torch.addcmul(heads * self.cos, swapped, self.sin)


def inverse_frequencies(spec: RopeSpec, head_dim: int) -> torch.Tensor:
    """Radians per position, float32 `[head_dim / 2]`."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    frequencies = 1.0 / (spec.base**exponents)
    if spec.scaling is RopeScaling.LINEAR:
        return frequencies / spec.factor
    if spec.scaling is RopeScaling.LLAMA3:
        return _llama3(frequencies, spec)
    return frequencies


def _llama3(frequencies: torch.Tensor, spec: RopeSpec) -> torch.Tensor:
    """Slows long waves by `factor`, keeps short ones, blends between by how often they fit the old context."""
    turns = spec.original_max_positions * frequencies / (2 * math.pi)
    keep = ((turns - spec.low_freq_factor) / (spec.high_freq_factor - spec.low_freq_factor)).clamp(0.0, 1.0)
    return frequencies * (keep + (1.0 - keep) / spec.factor)


def rotation_at(frequencies: torch.Tensor, positions: torch.Tensor, dtype: torch.dtype) -> Rotation:
    """The rotation for integer `positions` `[T]`. Angles are computed in float32."""
    angles = positions.to(torch.float32)[:, None] * frequencies
    cos, sin = angles.cos(), angles.sin()
    return Rotation(
        torch.cat((cos, cos), dim=-1)[:, None].to(dtype),
        torch.cat((-sin, sin), dim=-1)[:, None].to(dtype),
    )
