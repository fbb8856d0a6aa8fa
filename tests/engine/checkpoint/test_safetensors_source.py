"""Reading safetensors directories, whole and broken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from engine.checkpoint.safetensors_source import INDEX_NAME, SafetensorsSource, check_tensors
from protocol.errors import ModelLoadError

TENSORS = {
    "first": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "second": torch.linspace(-1, 1, 10).to(torch.bfloat16),
    "third": torch.ones(2, 2, 2, dtype=torch.float16),
    "empty": torch.zeros(0, 5),
    "scalar": torch.tensor(7.0),
}
SHARDS = {"a.safetensors": ["first", "empty"], "b.safetensors": ["second", "third", "scalar"]}


def write_shards(directory: Path) -> None:
    """`TENSORS` over two files, with their index."""
    for name, members in SHARDS.items():
        save_file({member: TENSORS[member] for member in members}, directory / name)
    weight_map = {member: name for name, members in SHARDS.items() for member in members}
    (directory / INDEX_NAME).write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize("is_sharded", [False, True], ids=["single", "sharded"])
def test_every_tensor_comes_back(is_sharded: bool, tmp_path: Path) -> None:
    """Names, shapes, dtypes and values equal what was saved, in one file and over shards."""
    if is_sharded:
        write_shards(tmp_path)
    else:
        save_file(TENSORS, tmp_path / "model.safetensors")
    source = SafetensorsSource(tmp_path)
    assert source.names() == set(TENSORS)
    for name, tensor in TENSORS.items():
        found = source.take(name)
        assert source.shape(name) == tuple(tensor.shape)
        assert found.dtype == tensor.dtype
        assert torch.equal(found, tensor)


def test_taken_tensors_are_the_callers_own(tmp_path: Path) -> None:
    """Writing to a taken tensor changes neither the file nor what is taken next."""
    save_file(TENSORS, tmp_path / "model.safetensors")
    source = SafetensorsSource(tmp_path)
    source.take("first").zero_()
    assert torch.equal(source.take("first"), TENSORS["first"])


def test_check_passes_what_fits(tmp_path: Path) -> None:
    """A source with all expected tensors of the expected shapes passes, whatever else it has."""
    write_shards(tmp_path)
    check_tensors(SafetensorsSource(tmp_path), {"first": (3, 4), "second": (10,)})


def test_check_names_what_is_missing(tmp_path: Path) -> None:
    """An expected tensor that is not there is named, with the directory."""
    write_shards(tmp_path)
    with pytest.raises(ModelLoadError, match=f"tensor fourth is missing from {tmp_path}"):
        check_tensors(SafetensorsSource(tmp_path), {"first": (3, 4), "fourth": (1,)})


def test_check_names_a_wrong_shape(tmp_path: Path) -> None:
    """A wrong shape is reported with what was found and what was expected."""
    write_shards(tmp_path)
    with pytest.raises(ModelLoadError, match=r"first has shape \[3, 4\], expected \[4, 3\]"):
        check_tensors(SafetensorsSource(tmp_path), {"first": (4, 3)})


@pytest.mark.parametrize("kept", [0, 7, 8, 60, -1])
def test_truncated_file_is_found_at_once(kept: int, tmp_path: Path) -> None:
    """A file cut anywhere is refused at construction, by name, before a tensor is taken."""
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelLoadError, match=r"model\.safetensors is truncated"):
        SafetensorsSource(tmp_path)


def test_file_cut_after_opening_is_an_error(tmp_path: Path) -> None:
    """A file that shrinks between construction and `take` gives an error and no half-read tensor."""
    path = tmp_path / "model.safetensors"
    save_file(TENSORS, path)
    source = SafetensorsSource(tmp_path)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ModelLoadError, match=r"cannot read tensor first from .*model\.safetensors"):
        source.take("first")


def test_shard_that_the_index_names_must_be_there(tmp_path: Path) -> None:
    """A shard that is missing is named, with the index that wants it."""
    write_shards(tmp_path)
    (tmp_path / "b.safetensors").unlink()
    with pytest.raises(ModelLoadError, match=rf"{INDEX_NAME} names b\.safetensors, which is not there"):
        SafetensorsSource(tmp_path)


def test_tensor_that_the_index_names_must_be_in_its_shard(tmp_path: Path) -> None:
    """A tensor that its shard lacks is named, with the shard."""
    write_shards(tmp_path)
    save_file({"second": TENSORS["second"], "scalar": TENSORS["scalar"]}, tmp_path / "b.safetensors")
    with pytest.raises(ModelLoadError, match=r"tensor third is missing from .*b\.safetensors"):
        SafetensorsSource(tmp_path)


def test_index_may_not_point_outside(tmp_path: Path) -> None:
    """An index cannot make the server read a file elsewhere."""
    (tmp_path / INDEX_NAME).write_text(json.dumps({"weight_map": {"first": "../model.safetensors"}}))
    with pytest.raises(ModelLoadError, match=r"\.\./model\.safetensors, which is not there"):
        SafetensorsSource(tmp_path)


HEADERS = {
    "no JSON": b"{nonsense",
    "no JSON object": b"[1, 2]",
    "dtype F3": b'{"x": {"dtype": "F3", "shape": [1], "data_offsets": [0, 4]}}',
    "malformed": b'{"x": {"dtype": "F32", "shape": [1]}}',
    "cannot have 4 bytes": b'{"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
}


@pytest.mark.parametrize("reason", HEADERS)
def test_malformed_header_is_explained(reason: str, tmp_path: Path) -> None:
    """A header that is not what the format says is refused with the file's name and the reason."""
    header = HEADERS[reason]
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(16))
    with pytest.raises(ModelLoadError, match=rf"model\.safetensors.*{reason}"):
        SafetensorsSource(tmp_path)


def test_directory_without_weights_is_refused(tmp_path: Path) -> None:
    """A directory without safetensors says so."""
    with pytest.raises(ModelLoadError, match="has no"):
        SafetensorsSource(tmp_path)
