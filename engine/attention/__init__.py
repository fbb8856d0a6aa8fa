"""Attention over the paged KV cache: one contract (`interface`), several ways to keep it, and the choice of one."""

from __future__ import annotations

import torch

from engine.attention.interface import AttentionBackend
from engine.attention.reference import ReferenceAttention
from engine.model_config import ModelConfig
from protocol.errors import ConfigError

ATTENTION_NAMES = ("auto", "reference", "fast", "cuda")


def select_attention(config: ModelConfig, device: torch.device, name: str = "auto") -> AttentionBackend:
    """The attention called `name`; `auto` is `cuda` on a CUDA device and `fast` elsewhere.

    Raises `ConfigError` for an unknown name, and for one that does not run on `device`.
    """
    if name not in ATTENTION_NAMES:
        raise ConfigError(f"attention {name!r} is unknown; use one of {', '.join(ATTENTION_NAMES)}", param="attention")
    if name == "auto":
        name = "cuda" if device.type == "cuda" else "fast"
    if name == "reference":
        return ReferenceAttention(config)
    wanted = "cuda" if name == "cuda" else "cpu"
    if device.type != wanted:
        raise ConfigError(f"attention {name!r} runs on {wanted} only, not on {device.type}", param="attention")
    # Loaded on demand: neither device's machinery is needed to run the other.
    if name == "cuda":
        from engine.attention.cuda import CudaAttention

        return CudaAttention(config)
    from engine.attention.fast_cpu import FastCpuAttention

    return FastCpuAttention(config)
