"""Reading a GGUF file: metadata by key, tensors by name, every fault reported with the file's name.

A thin layer over `gguf.GGUFReader`. Knows nothing of architectures or tokenizers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt

from protocol.errors import ModelLoadError

_PARSE_ERRORS = (ValueError, IndexError, KeyError, OverflowError, TypeError, MemoryError)
"""What `GGUFReader` raises on a file that is cut short or is something else; it has no error of its own."""


class GgufFile:
    """An open GGUF file. Raises `ModelLoadError` for a file that is missing, truncated or not GGUF."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._reader = gguf.GGUFReader(path)
        except OSError as error:
            raise ModelLoadError(f"cannot read {path}: {error}") from error
        except _PARSE_ERRORS as error:
            raise ModelLoadError(f"{path} is not a whole GGUF file ({error}); fetch it again") from error
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        architecture = self.field("general.architecture")
        if not isinstance(architecture, str):
            raise ModelLoadError(f"{path}: general.architecture is {architecture!r}, not a name")
        self.architecture = architecture

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a metadata key (a number, text, truth value or list of these), or `default`."""
        found = self._reader.get_field(key)
        if found is None:
            return default
        try:
            return found.contents()
        except _PARSE_ERRORS as error:
            raise ModelLoadError(f"{self.path}: the value of {key} cannot be read: {error}") from error

    def field(self, key: str) -> Any:
        """The value of a metadata key that must be there."""
        value = self.get(key)
        if value is None:
            raise ModelLoadError(f"{self.path}: the metadata has no {key}")
        return value

    def tensor_names(self) -> list[str]:
        """Names of all tensors, in the file's order."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, rows first (GGUF itself lists the innermost dimension first)."""
        return tuple(int(size) for size in reversed(self._tensor(name).shape.tolist()))

    def values(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor as float32, dequantised exactly as its type defines."""
        tensor = self._tensor(name)
        try:
            values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        except (NotImplementedError, *_PARSE_ERRORS) as error:
            kind = tensor.tensor_type.name
            raise ModelLoadError(f"{self.path}: tensor {name} of type {kind} cannot be dequantised: {error}") from error
        return np.ascontiguousarray(values, dtype=np.float32).reshape(self.shape(name))

    def _tensor(self, name: str) -> gguf.ReaderTensor:
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ModelLoadError(f"{self.path}: tensor {name} is missing")
        return tensor
