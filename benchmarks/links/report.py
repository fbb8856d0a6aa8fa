"""Markdown tables of what was measured at several rates, for the documentation. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from benchmarks.links.competition import Competition, compete_ratio
from benchmarks.links.results import Measured, cell, ratio
from prefill_worker.config import Push

HEADINGS = (
    "link Mbit/s", "prompt tokens", "push", "first token s", "second token s", "gap s", "hidden", "KV made Mbit/s",
    "reserved MB/s", "achieved MB/s", "gap over (a)", "KV late s", "over (a)",
)  # fmt: skip
COMPETITION_HEADINGS = (
    "link Mbit/s", "push", "short: first token s", "short: second token s", "long: first token s",
    "long: second token s", "short: reserved, achieved MB/s", "long: reserved, achieved MB/s", "rounds",
    "short, over (b)",
)  # fmt: skip
LETTERS = {Push.END: "(a) end", Push.CHUNKS: "(b) chunks", Push.PLANNED: "(c) planned"}
NUM_BYTES_A_MEGABYTE = 1e6


def report(measured: Mapping[float, Measured], competitions: Mapping[float, Competition]) -> str:
    """Both tables; one that has no rows is left out."""
    tables = []
    if measured:
        lines = [line for rate_mbit, found in measured.items() for line in _lines(rate_mbit, found)]
        tables.append(markdown(HEADINGS, lines))
    if competitions:
        lines = [line for rate_mbit, rows in competitions.items() for line in _competing_lines(rate_mbit, rows)]
        tables.append(markdown(COMPETITION_HEADINGS, lines))
    return "\n\n".join(tables)


def markdown(headings: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table of cells."""
    every_line = [headings, ["---"] * len(headings), *lines]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in every_line)


def _lines(rate_mbit: float, measured: Measured) -> Iterator[list[str]]:
    """A line for each length, push and budget, in this order, so that what is to be compared stands together."""
    lengths = next(iter(measured.values()), {})
    for num_tokens in lengths:
        for push, found in measured.items():
            for budget, row in found[num_tokens].items():
                end = measured.get(Push.END, {}).get(num_tokens, {}).get(budget)
                yield [
                    f"{rate_mbit:g}",
                    f"{num_tokens}",
                    LETTERS[push] + (f", at {budget:g}" if budget != 1 else ""),
                    cell(row["ttft_s"], ".2f"),
                    cell(row["second_token_s"], ".2f"),
                    cell(row["gap_s"], ".2f"),
                    cell(row["hidden_ratio"], ".2f"),
                    cell(row["production_mbit"], ".0f"),
                    _megabytes(row["reserved_bytes_per_second"]),
                    _megabytes(row["achieved_bytes_per_second"]),
                    cell(ratio(row, end) if end and push is not Push.END else None, ".2f"),
                    cell(row["late_s"], ".3f"),
                    cell(ratio(row, end, "late_s") if end and push is not Push.END else None, ".2f"),
                ]


def _competing_lines(rate_mbit: float, rows: Competition) -> Iterator[list[str]]:
    for push, row in rows.items():
        rates = {
            which: f"{_megabytes(row[f'{which}_reserved_bytes_per_second'])}, "
            f"{_megabytes(row[f'{which}_achieved_bytes_per_second'])}"
            for which in ("short", "long")
        }
        yield [
            f"{rate_mbit:g}",
            LETTERS[push],
            cell(row["short_ttft_s"], ".2f"),
            cell(row["short_second_token_s"], ".2f"),
            cell(row["long_ttft_s"], ".2f"),
            cell(row["long_second_token_s"], ".2f"),
            rates["short"],
            rates["long"],
            f"{row['counted']} of {row['rounds']}",
            cell(compete_ratio(rows) if push is Push.PLANNED else None, ".2f"),
        ]


def _megabytes(bytes_per_second: float | None) -> str:
    return cell(None if bytes_per_second is None else bytes_per_second / NUM_BYTES_A_MEGABYTE, ".2f")
