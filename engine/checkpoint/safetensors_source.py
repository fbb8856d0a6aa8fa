"""A model directory's safetensors, handed out one tensor at a time.

Tensors are read straight into their own memory, never mapped: loading costs the size of the tensors and no page more.
All headers are read and checked at construction, so that a broken file is found before a worker serves. Knows nothing
of what the tensors mean.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch

from engine.checkpoint.config_file import read_json
from protocol.errors import ModelLoadError

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
MAX_HEADER_BYTES = 100_000_000
"""The format's own limit for a header."""

_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


@dataclass(frozen=True, slots=True)
class _Place:
    """Where one tensor lies: `num_bytes` from `offset` (from the start of the file)."""

    path: Path
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


class SafetensorsSource:
    """The tensors of a directory: those its index names, else of `model.safetensors`, else of all `*.safetensors`.

    Raises `ModelLoadError`, naming the file, for a shard that is missing, truncated or malformed, and for a tensor that
    is not in the shard that the index names.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._places: dict[str, _Place] = {}
        index_path = directory / INDEX_NAME
        if index_path.exists():
            self._read_shards(index_path)
            return
        single = directory / SINGLE_NAME
        paths = [single] if single.exists() else sorted(directory.glob("*.safetensors"))
        if not paths:
            raise ModelLoadError(f"{directory} has no *.safetensors file")
        for path in paths:
            self._add(_read_header(path))

    def names(self) -> set[str]:
        """Names of all tensors."""
        return set(self._places)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of one tensor, without reading it. Raises `ModelLoadError` for a name that does not exist."""
        return self._place(name).shape

    def take(self, name: str) -> torch.Tensor:
        """Reads one tensor into memory of its own, on the CPU, in the dtype it is stored in."""
        place = self._place(name)
        tensor = torch.empty(place.shape, dtype=place.dtype)
        try:
            with place.path.open("rb", buffering=0) as file:
                file.seek(place.offset)
                if place.num_bytes:
                    _fill(file, memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data))
        except (OSError, EOFError) as error:
            raise ModelLoadError(f"cannot read tensor {name} from {place.path}: {error}") from error
        return tensor

    def _place(self, name: str) -> _Place:
        place = self._places.get(name)
        if place is None:
            raise ModelLoadError(f"tensor {name} is missing from {self._directory}")
        return place

    def _read_shards(self, index_path: Path) -> None:
        weight_map = read_json(index_path).get("weight_map")
        if not isinstance(weight_map, dict) or not all(isinstance(value, str) for value in weight_map.values()):
            raise ModelLoadError(f"{index_path} has no weight_map from tensors to files")
        for file_name in sorted(set(weight_map.values())):
            path = self._directory / file_name
            if Path(file_name).name != file_name or not path.is_file():
                raise ModelLoadError(f"{index_path} names {file_name}, which is not there; fetch the model again")
            found = _read_header(path)
            wanted = {name for name, holder in weight_map.items() if holder == file_name}
            if missing := sorted(wanted - found.keys()):
                raise ModelLoadError(f"tensor {missing[0]} is missing from {path}, where {INDEX_NAME} says it is")
            self._add({name: found[name] for name in wanted})

    def _add(self, places: Mapping[str, _Place]) -> None:
        for name, place in places.items():
            if name in self._places:
                raise ModelLoadError(f"tensor {name} is in {self._places[name].path.name} and again in {place.path}")
            self._places[name] = place


def check_tensors(source: SafetensorsSource, expected: Mapping[str, tuple[int, ...]]) -> None:
    """Raises `ModelLoadError` for the first tensor, by name, that is missing or not of the shape `expected`."""
    for name in sorted(expected):
        found = source.shape(name)
        if found != tuple(expected[name]):
            wanted = list(expected[name])
            raise ModelLoadError(f"tensor {name} has shape {list(found)}, expected {wanted} by config.json")


def _read_header(path: Path) -> dict[str, _Place]:
    """The tensors that a file says it holds, all of them checked to lie within it."""
    try:
        with path.open("rb") as file:
            file_bytes = path.stat().st_size
            start, header = _parse_header(file, path, file_bytes)
    except OSError as error:
        raise ModelLoadError(f"cannot read {path}: {error.strerror}") from error
    header.pop("__metadata__", None)
    return {name: _checked_place(path, name, entry, (start, file_bytes)) for name, entry in header.items()}


def _parse_header(file: BinaryIO, path: Path, file_bytes: int) -> tuple[int, dict[str, Any]]:
    """The offset at which the tensors' bytes begin, and the header."""
    length_field = file.read(8)
    if len(length_field) < 8:
        raise ModelLoadError(f"{path} is truncated: it has only {file_bytes} bytes")
    (num_bytes,) = struct.unpack("<Q", length_field)
    if num_bytes > MAX_HEADER_BYTES:
        raise ModelLoadError(f"{path} is not a safetensors file: its header would have {num_bytes} bytes")
    if 8 + num_bytes > file_bytes:
        raise ModelLoadError(f"{path} is truncated: its header ends at byte {8 + num_bytes}, the file at {file_bytes}")
    try:
        header = json.loads(file.read(num_bytes))
    except ValueError as error:
        raise ModelLoadError(f"{path} is not a safetensors file: its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise ModelLoadError(f"{path} is not a safetensors file: its header is no JSON object")
    return 8 + num_bytes, header


def _checked_place(path: Path, name: str, entry: Any, span: tuple[int, int]) -> _Place:
    """The place of one tensor, within the `span` of the file that holds tensors."""
    start, file_bytes = span
    try:
        dtype_name, shape = entry["dtype"], tuple(int(size) for size in entry["shape"])
        first, last = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise ModelLoadError(f"{path}: the header's entry for tensor {name} is malformed: {error!r}") from error
    dtype = _DTYPES.get(dtype_name)
    if dtype is None:
        raise ModelLoadError(f"{path}: tensor {name} has dtype {dtype_name}, which is not supported")
    if min(shape, default=0) < 0 or first < 0 or last - first != math.prod(shape) * dtype.itemsize:
        kind = f"shape {list(shape)} and dtype {dtype_name}"
        raise ModelLoadError(f"{path}: tensor {name} of {kind} cannot have {last - first} bytes")
    if start + last > file_bytes:
        raise ModelLoadError(f"{path} is truncated: {name} ends at byte {start + last}, the file at {file_bytes}")
    return _Place(path, dtype, shape, start + first, last - first)


def _fill(file: Any, target: memoryview) -> None:
    """Reads until `target` is full; a single read may return less."""
    done = 0
    while done < len(target):
        count = file.readinto(target[done:])
        if not count:
            raise EOFError(f"the file ends {len(target) - done} bytes early")
        done += count
