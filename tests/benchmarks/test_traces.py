"""Traces and the prompts made from them."""

from pathlib import Path

import pytest

from benchmarks.load.prompts import FIRST_TOKEN_ID, random_prompt, trace_prompt
from benchmarks.load.traces import TraceRow, read_trace, scaled_length

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:18:04,110,27
"""
MOONCAKE = """{"timestamp": 2000, "input_length": 1100, "output_length": 5, "hash_ids": [0, 1, 2]}
{"timestamp": 1500, "input_length": 900, "output_length": 7, "hash_ids": [0, 3]}
"""


def test_azure_rows_have_times_from_the_first(tmp_path: Path) -> None:
    """Seven digits of a second are read, none of them lost, and a stamp without a fraction is understood."""
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    rows = read_trace(path)
    assert [row.arrival_s for row in rows] == pytest.approx([0.0, 0.052, 60.02004], abs=1e-5)
    assert [(row.prompt_tokens, row.output_tokens) for row in rows] == [(4808, 10), (3180, 8), (110, 27)]


def test_mooncake_rows_are_ordered_by_arrival(tmp_path: Path) -> None:
    """Rows come out in order of time with their block ids."""
    path = tmp_path / "mooncake.jsonl"
    path.write_text(MOONCAKE)
    assert read_trace(path) == [TraceRow(0.0, 900, 7, (0, 3)), TraceRow(0.5, 1100, 5, (0, 1, 2))]


def test_a_trace_can_be_cut(tmp_path: Path) -> None:
    """Only as many rows are read as were asked for."""
    path = tmp_path / "azure.csv"
    path.write_text(AZURE)
    assert len(read_trace(path, 2)) == 2


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,1\n", "line 2"),
        ("a.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,1,1\n", "line 2"),
        ("a.jsonl", '{"timestamp": 1}\n', "line 1"),
        ("a.jsonl", "nothing\n", "line 1"),
        ("a.jsonl", "", "no request"),
    ],
)
def test_what_is_no_trace_is_refused(tmp_path: Path, name: str, content: str, message: str) -> None:
    """The error names the line."""
    path = tmp_path / name
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        read_trace(path)


def test_equal_block_ids_give_equal_tokens() -> None:
    """Two prompts share exactly the tokens of the blocks that they share, also when scaled."""
    one = trace_prompt(TraceRow(0.0, 1536, 1, (4, 5, 6)), 0, 0.125, 1000, 0)
    two = trace_prompt(TraceRow(0.0, 1536, 1, (4, 5, 7)), 1, 0.125, 1000, 0)
    assert len(one) == len(two) == 192
    assert one[:128] == two[:128]
    assert one[128:] != two[128:]


def test_prompts_without_block_ids_are_their_own() -> None:
    """Rows of a trace without content share nothing, and a prompt longer than its blocks is filled up."""
    row = TraceRow(0.0, 600, 1, ())
    assert trace_prompt(row, 0, 1.0, 1000, 0) != trace_prompt(row, 1, 1.0, 1000, 0)
    assert len(trace_prompt(TraceRow(0.0, 600, 1, (1,)), 0, 1.0, 1000, 0)) == 600


def test_ids_stay_in_the_vocabulary() -> None:
    """Random prompts use the range that was given, and equal keys give equal prompts."""
    prompt = random_prompt(500, 300, "key")
    assert FIRST_TOKEN_ID <= min(prompt) <= max(prompt) < 300
    assert prompt == random_prompt(500, 300, "key")
    with pytest.raises(ValueError, match="vocabulary"):
        random_prompt(1, 100, "key")


def test_scaled_lengths_are_never_zero() -> None:
    """The shortest request still has one token."""
    assert [scaled_length(tokens, 0.01) for tokens in (1, 100, 449)] == [1, 1, 4]
