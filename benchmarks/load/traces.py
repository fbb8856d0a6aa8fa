"""Reads request traces: the Azure LLM inference CSV and Mooncake's JSONL. Both hold lengths and times, no text."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import TextIO

MOONCAKE_BLOCK_TOKENS = 512


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One request: when it came (seconds from the first), how long it is, and which blocks of content its prompt has.

    Rows that share leading `block_ids` share that much of their prompts; a block is `MOONCAKE_BLOCK_TOKENS` tokens
    before scaling. Without block ids every prompt is its own.
    """

    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()


def read_trace(path: Path, max_requests: int | None = None) -> list[TraceRow]:
    """The first `max_requests` rows in order of arrival. Raises `ValueError` naming the line at fault."""
    with path.open(encoding="utf-8") as lines:
        rows = _azure_rows(lines) if path.suffix == ".csv" else _mooncake_rows(lines)
        taken = sorted(islice(rows, max_requests), key=lambda row: row.arrival_s)
    if not taken:
        raise ValueError(f"{path} holds no request")
    return [_moved(row, taken[0].arrival_s) for row in taken]


def scaled_length(num_tokens: int, factor: float) -> int:
    """A length times `factor`, at least one token."""
    return max(1, round(num_tokens * factor))


def _moved(row: TraceRow, start_s: float) -> TraceRow:
    return TraceRow(row.arrival_s - start_s, row.prompt_tokens, row.output_tokens, row.block_ids)


def _azure_rows(lines: TextIO) -> Iterator[TraceRow]:
    for number, fields in enumerate(csv.DictReader(lines), start=2):
        try:
            arrival_s = _seconds(fields["TIMESTAMP"])
            yield TraceRow(arrival_s, int(fields["ContextTokens"]), int(fields["GeneratedTokens"]))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"line {number} is no row of the Azure trace: {fields}") from error


def _seconds(stamp: str) -> float:
    # Seven digits of a second in the file, of which datetime takes six.
    whole, _, fraction = stamp.partition(".")
    return datetime.fromisoformat(f"{whole}+00:00").timestamp() + float(f"0.{fraction or 0}")


def _mooncake_rows(lines: TextIO) -> Iterator[TraceRow]:
    for number, line in enumerate(lines, start=1):
        try:
            fields = json.loads(line)
            yield TraceRow(
                arrival_s=fields["timestamp"] / 1e3,
                prompt_tokens=int(fields["input_length"]),
                output_tokens=int(fields["output_length"]),
                block_ids=tuple(fields["hash_ids"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"line {number} is no row of a Mooncake trace: {line[:80]!r}") from error
