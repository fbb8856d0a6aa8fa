"""The table of `docs/failure-modes.md`, read: what each of its rows claims."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from itertools import dropwhile, takewhile
from pathlib import Path

DOCUMENT = Path(__file__).parents[3] / "docs" / "failure-modes.md"
COLUMNS = ("id", "what happens", "what the client sees", "deadline", "counters", "log lines", "other tests")
_CODE = re.compile(r"`([^`]+)`")
_DEADLINE = re.compile(r"`--([a-z-]+)` (\d+(?:\.\d+)?)( s)?")
_COUNTER = re.compile(r"(kvferry_\w+)(?:\{(.*)\})?")
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class Counter:
    """A metric and the labels that the failure is counted under."""

    name: str
    labels: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One failure mode. `answer` is `200` for the text as if nothing had happened, a status and a code for an error, `none`
    for a client that does not hear it. `settings` are those that bound it, with the defaults that the document gives.
    `log_patterns` have `<id>` for the request and `<word>` for anything.
    """

    id: str
    answer: str
    settings: tuple[tuple[str, float], ...]
    deadline_s: float | None
    counters: tuple[Counter, ...]
    log_patterns: tuple[str, ...]
    other_tests: tuple[str, ...]


@cache
def rows() -> tuple[Row, ...]:
    """All rows of the document's first table. Raises `ValueError` when it is not as it should be."""
    from_table = dropwhile(lambda line: not line.startswith("|"), DOCUMENT.read_text().splitlines())
    lines = list(takewhile(lambda line: line.startswith("|"), from_table))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    if tuple(cells[0]) != COLUMNS:
        raise ValueError(f"{DOCUMENT.name} starts with another table than {COLUMNS}")
    return tuple(map(_row, cells[2:]))


def _row(cells: list[str]) -> Row:
    if len(cells) != len(COLUMNS):
        raise ValueError(f"a row has {len(cells)} cells: {cells}")
    deadlines = _DEADLINE.findall(cells[3])
    seconds = [float(value) for _, value, unit in deadlines if unit]
    return Row(
        id=_codes(cells[0])[0],
        answer=_codes(cells[2])[0],
        settings=tuple((flag.replace("-", "_"), float(value)) for flag, value, _ in deadlines),
        deadline_s=sum(seconds) if seconds else None,
        counters=tuple(map(_counter, _codes(cells[4]))),
        log_patterns=tuple(_codes(cells[5])),
        other_tests=tuple(_codes(cells[6])),
    )


def _codes(cell: str) -> list[str]:
    found = _CODE.findall(cell)
    if not found:
        raise ValueError(f"nothing in code marks in {cell!r}")
    return found


def _counter(text: str) -> Counter:
    match = _COUNTER.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no metric with labels")
    return Counter(match[1], tuple(_LABEL.findall(match[2] or "")))
