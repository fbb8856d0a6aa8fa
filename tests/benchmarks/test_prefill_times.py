"""The recording of prefill times, on a tiny model."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.prefill_times import (
    COLUMNS,
    LEAST_TOKENS,
    MAX_BURST,
    Sample,
    blocks_each,
    header,
    main,
    parse_arguments,
    record,
    row,
)
from scheduling.prefill_time import PromptWork
from tests.support.tiny_model import tiny_engine

MOST_TOKENS = 40


def recorded(tmp_path: Path) -> list[Sample]:
    """Twelve prompts, read by a tiny engine in steps of 16 tokens."""
    sizes = ["--median-tokens", "30", "--most-tokens", str(MOST_TOKENS), "--chunk-tokens", "16"]
    arguments = parse_arguments(["--prompts", "12", *sizes, "--out", str(tmp_path / "times.csv")])
    engine = tiny_engine(
        block_size=16, num_blocks=MAX_BURST * blocks_each(16, MOST_TOKENS), max_position_embeddings=2048
    )
    return list(record(engine, arguments))


def test_every_prompt_is_a_sample(tmp_path: Path) -> None:
    """As many as were asked for, of lengths within the bounds, each with a time; some wait behind others."""
    samples = recorded(tmp_path)
    assert len(samples) == 12
    assert all(LEAST_TOKENS <= work.num_computed_tokens <= MOST_TOKENS for work, _ in samples)
    assert min(seconds for _, seconds in samples) > 0
    assert any(work.num_queued_tokens for work, _ in samples)


def test_a_file_says_how_it_was_made() -> None:
    """The command, the machine, the columns, then the samples."""
    command, machine, columns = header(["--seed", "1"]).splitlines()
    assert command == "# python -m benchmarks.prefill_times --seed 1"
    assert machine.startswith("# {")
    assert columns == COLUMNS
    assert row((PromptWork(30, 256, 70), 0.125)) == "30,256,70,0.12500\n"


def test_a_missing_model_is_an_error_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one sentence, no traceback, no file."""
    out = tmp_path / "times.csv"
    assert main(["--model", "/no/such/model", "--out", str(out)]) == 2
    assert "no model" in capsys.readouterr().err
    assert not out.exists()
