"""What computes the codes of a pool: fused Triton kernels on CUDA, torch everywhere else.

The environment variable `KVFERRY_CODEC_KERNELS` has the last word: `auto` (as above, and what holds without it), `torch`, or
`triton`, which is refused where it cannot be had. Triton is imported only when its kernels are chosen.
"""

from __future__ import annotations

import logging
import os
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from typing import NamedTuple

import torch

from protocol.errors import ConfigError
from transfer.codec.channel_parts import ChannelOperations
from transfer.codec.channel_torch import TorchChannel
from transfer.codec.symmetric_parts import SymmetricOperations
from transfer.codec.symmetric_torch import TorchSymmetric

log = logging.getLogger(__name__)

KERNELS_VARIABLE = "KVFERRY_CODEC_KERNELS"
_INTERPRETER_VARIABLE = "TRITON_INTERPRET"


class Kernels(StrEnum):
    """Who is to compute."""

    AUTO = "auto"
    TORCH = "torch"
    TRITON = "triton"


class Operations(NamedTuple):
    """What computes, for each family of codecs."""

    channel: ChannelOperations
    symmetric: SymmetricOperations


TORCH = Operations(TorchChannel(), TorchSymmetric())
"""The reference, for any device."""


def operations_for(device: torch.device) -> Operations:
    """The operations for pools on this device. Raises `ConfigError` when the variable asks for what there is not."""
    wanted = os.environ.get(KERNELS_VARIABLE, Kernels.AUTO)
    if wanted not in set(Kernels):
        raise ConfigError(f"{KERNELS_VARIABLE} is {wanted!r}: set it to {', '.join(Kernels)}, or leave it unset")
    return _chosen(device.type, Kernels(wanted))


@cache  # so that the choice is in the log once
def _chosen(device_type: str, wanted: Kernels) -> Operations:
    reason = _why_not_triton(device_type, wanted)
    if reason is None:
        from transfer.codec.fused.channel import TritonChannel
        from transfer.codec.fused.symmetric import TritonSymmetric

        log.info("KV in %s memory is coded by Triton kernels", device_type)
        return Operations(TritonChannel(), TritonSymmetric())
    if wanted is Kernels.TRITON:
        raise ConfigError(f"{KERNELS_VARIABLE}=triton cannot be had: {reason}; set it to auto or torch")
    log.info("KV in %s memory is coded by torch: %s", device_type, reason)
    return TORCH


def _why_not_triton(device_type: str, wanted: Kernels) -> str | None:
    """None where the kernels can run and are wanted."""
    if wanted is Kernels.TORCH:
        return f"{KERNELS_VARIABLE} says so"
    is_interpreted = wanted is Kernels.TRITON and os.environ.get(_INTERPRETER_VARIABLE) == "1"
    if device_type != "cuda" and not is_interpreted:
        return "the kernels are for CUDA"
    if find_spec("triton") is None:
        return "triton is not installed (`pip install triton`)"
    return None
