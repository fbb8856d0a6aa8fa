"""The choice of an attention by name and device, and the metadata that all of them are given."""

from __future__ import annotations

import pytest
import torch

from engine.attention import select_attention
from engine.attention.interface import build_metadata
from engine.batch import StepBatch
from engine.model_config import ModelConfig
from protocol.errors import ConfigError
from tests.support.generate import slice_of
from tests.support.tiny_model import tiny_hf_config

CONFIG = ModelConfig.from_hf(tiny_hf_config())


@pytest.mark.parametrize(
    ("device", "name", "chosen"),
    [
        ("cpu", "auto", "fast"),
        ("cpu", "fast", "fast"),
        ("cpu", "reference", "reference"),
        ("cuda", "auto", "cuda"),
        ("cuda", "cuda", "cuda"),
        ("cuda", "reference", "reference"),
    ],
)
def test_attention_is_chosen_by_name_and_device(device: str, name: str, chosen: str) -> None:
    """`auto` takes the device's own attention; a name takes that one. No device is touched."""
    assert select_attention(CONFIG, torch.device(device), name).name == chosen


@pytest.mark.parametrize(("device", "name"), [("cpu", "cuda"), ("cuda", "fast"), ("cpu", "flash")])
def test_attention_that_cannot_run_is_refused(device: str, name: str) -> None:
    """An unknown name, and one made for another device, is an error of configuration."""
    with pytest.raises(ConfigError, match=name) as caught:
        select_attention(CONFIG, torch.device(device), name)
    assert caught.value.param == "attention"


def test_metadata_says_where_each_token_stands() -> None:
    """Positions, slots, block tables and lengths of a chunk and a decode, by hand; spare blocks are left out."""
    chunk = slice_of([7, 7, 7], 3, [6, 2, 9], "a")
    decode = slice_of([5], 8, [1, 3, 4], "b")
    found = build_metadata(StepBatch((chunk, decode)), 4, torch.device("cpu"))
    assert found.positions.tolist() == [3, 4, 5, 8]
    assert found.slots.tolist() == [6 * 4 + 3, 2 * 4, 2 * 4 + 1, 4 * 4]
    assert found.block_tables.tolist() == [[6, 2, 0], [1, 3, 4]]
    assert found.query_starts == (0, 3, 4)
    assert found.context_lens == (6, 9)
    assert not found.is_decode_only
    assert build_metadata(StepBatch((decode,)), 4, torch.device("cpu")).is_decode_only
