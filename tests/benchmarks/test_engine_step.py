"""The engine's benchmark, run on a tiny model: what it asks of the engine and what it reports."""

from __future__ import annotations

import pytest

from benchmarks.engine_step import main, make_sequences, measure, parse_arguments
from tests.support.tiny_model import tiny_engine


def test_sequences_share_no_block() -> None:
    """Blocks are scattered over the cache, each belongs to one sequence, and all fit."""
    sequences = make_sequences(5, 7, 3, 97, seed=1)
    blocks = [block for each in sequences for block in each.block_ids]
    assert sorted(blocks) == list(range(15))
    assert blocks != sorted(blocks)


def test_a_prompt_is_read_in_chunks() -> None:
    """Slices follow each other; only the last one of a prompt asks for a token."""
    sequence = make_sequences(1, 10, 1, 97, seed=0)[0]
    parts = [sequence.take(4) for _ in range(3)]
    assert [(part.start, part.num_tokens, bool(part.draws)) for part in parts] == [
        (0, 4, False),
        (4, 4, False),
        (8, 2, True),
    ]


def test_every_kind_of_run_is_measured() -> None:
    """One positive number for each size of batch and one for prefill, whose chunks need not divide the prompt."""
    sizes = ["--prompt-tokens", "3", "--prefill-tokens", "20", "--chunk-tokens", "8"]
    arguments = parse_arguments(["--batches", "1", "3", "--steps", "2", "--repeats", "1", *sizes])
    found = measure(tiny_engine(), arguments)
    assert list(found) == ["decode_tokens_per_s_batch_1", "decode_tokens_per_s_batch_3", "prefill_tokens_per_s_20"]
    assert min(found.values()) > 0


@pytest.mark.parametrize("wrong", [["--threads", "0"], ["--batches", "1", "-2"], ["--steps", "many"]])
def test_wrong_arguments_are_named(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """A count below 1 or not a number ends with the usage and the flag's name."""
    with pytest.raises(SystemExit):
        parse_arguments(wrong)
    assert wrong[0] in capsys.readouterr().err


def test_a_missing_model_is_an_error_that_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and one sentence, no traceback."""
    assert main(["--model", "/no/such/model"]) == 2
    assert "no model" in capsys.readouterr().err
