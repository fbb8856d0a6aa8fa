"""The measured cost of a step, on a tiny model."""

from __future__ import annotations

import pytest

from benchmarks.step_cost import StepShape, main, shapes
from scheduling.chunk_size import StepWork


def test_a_shape_is_its_tokens_and_pairs() -> None:
    """Two decodes after 10 tokens look at 11 each; a chunk of 3 after 5 at 6, 7 and 8."""
    assert StepShape(2, 10, 3, 5).work == StepWork(5, 22 + 21)


def test_shapes_stay_within_the_context() -> None:
    """Nothing is timed that the model cannot hold, and a small model still gets decodes and chunks."""
    for limit in (300, 1024, 4096):
        found = shapes(limit)
        assert all(max(one.decode_context + 1, one.chunk_context + one.chunk_tokens) <= limit for one in found)
        assert any(one.num_decodes for one in found)
        assert any(one.chunk_tokens for one in found)


def test_a_model_that_is_not_there_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and a sentence, no traceback."""
    assert main(["--model", "/nowhere/at/all"]) == 2
    assert capsys.readouterr().err.startswith("step_cost: ")
