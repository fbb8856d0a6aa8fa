"""Where a decoder's weights come from, and the fingerprint by which two workers know that they hold the same ones.

Tensors go by their Hugging Face names. Knows nothing of files: `engine/checkpoint` reads those.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import Protocol

import torch

from engine.model_config import ModelConfig
from protocol.errors import ModelLoadError

FINGERPRINT_SAMPLES = 4096


class WeightSource(Protocol):
    """A model's tensors, handed out one at a time so that no second copy of the model is ever in memory."""

    def names(self) -> set[str]:
        """Names of all tensors."""
        ...

    def take(self, name: str) -> torch.Tensor:
        """One tensor, in the dtype it is stored in. Each name is taken at most once. Raises `ModelLoadError`."""
        ...


class LazyWeights:
    """A source over functions that each read one tensor."""

    def __init__(self, readers: Mapping[str, Callable[[], torch.Tensor]]) -> None:
        self._readers = dict(readers)

    def names(self) -> set[str]:
        """Names of all tensors, taken or not."""
        return set(self._readers)

    def take(self, name: str) -> torch.Tensor:
        """Reads one tensor. Raises `ModelLoadError` for a name that does not exist."""
        if name not in self._readers:
            raise ModelLoadError(f"the checkpoint has no tensor {name!r}")
        return self._readers[name]()


class MemoryWeights(LazyWeights):
    """A source over tensors that are in memory already."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__({name: _constant(tensor) for name, tensor in tensors.items()})


class FingerprintingWeights:
    """Passes another source's tensors on and remembers a sample of each, so that a model is read once and not twice."""

    def __init__(self, source: WeightSource) -> None:
        self._source = source
        self._digests: dict[str, bytes] = {}

    def names(self) -> set[str]:
        """Names of all tensors of the source."""
        return self._source.names()

    def take(self, name: str) -> torch.Tensor:
        """One tensor of the source, sampled on its way."""
        tensor = self._source.take(name)
        self._digests[name] = _sample_digest(tensor)
        return tensor

    def fingerprint(self, config: ModelConfig) -> str:
        """32 hexadecimal digits over the configuration and all tensors taken so far, whatever the order.

        Equal in two processes that load the same model, even if they compute in different dtypes. A sample and not
        every byte is hashed: it tells models apart, and does not detect tampering.
        """
        total = hashlib.blake2b(config.identity().encode(), digest_size=16)
        for name in sorted(self._digests):
            total.update(name.encode() + b"\0" + self._digests[name])
        return total.hexdigest()


def fingerprint(config: ModelConfig, source: WeightSource) -> str:
    """The fingerprint of `config` with all tensors of `source`; see `FingerprintingWeights.fingerprint`."""
    weights = FingerprintingWeights(source)
    for name in sorted(weights.names()):
        weights.take(name)
    return weights.fingerprint(config)


def _sample_digest(tensor: torch.Tensor) -> bytes:
    """Shape, dtype and about `FINGERPRINT_SAMPLES` evenly spread elements."""
    flat = tensor.detach().reshape(-1)
    stride = max(1, flat.numel() // FINGERPRINT_SAMPLES)
    sample = flat[::stride].to("cpu").contiguous()
    digest = hashlib.blake2b(f"{tuple(tensor.shape)}/{tensor.dtype}/".encode(), digest_size=16)
    digest.update(sample.view(torch.uint8).numpy().tobytes())
    return digest.digest()


def _constant(tensor: torch.Tensor) -> Callable[[], torch.Tensor]:
    return lambda: tensor
