"""Answers to medians, a table, and what one budget, or one time of pushing, gains over another. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from benchmarks.links.asking import Answer
from prefill_worker.config import Push

Rows: TypeAlias = dict[float, dict[str, Any]]
"""A row for each budget: see `by_budget`."""
Measured: TypeAlias = dict[Push, dict[int, Rows]]
"""The rows of each push for each length of a prompt."""

COLUMNS = (
    ("ttft_s", "first s", ".3f"),
    ("second_token_s", "second s", ".3f"),
    ("gap_s", "gap s", ".3f"),
    ("late_s", "KV late s", ".3f"),
    ("kv_bytes", "KV bytes", ",.0f"),
    ("production_mbit", "made Mbit/s", ".1f"),
    ("hidden_ratio", "hidden", ".3f"),
    ("reserved_bytes_per_second", "reserved B/s", ",.0f"),
    ("achieved_bytes_per_second", "achieved B/s", ",.0f"),
    ("cable_start_s", "cable from s", ".3f"),
    ("cable_end_s", "to s", ".3f"),
    ("cable_hidden_ratio", "its hidden", ".3f"),
    ("rate_mbit", "its Mbit/s", ".2f"),
)


def medians(answers: Sequence[Answer]) -> dict[str, float | None]:
    """The median of every measured field over the answers that ended well; None where no answer has it."""
    found: dict[str, float | None] = {}
    for name, _, _ in COLUMNS:
        values = [getattr(one, name) for one in answers if one.error is None and getattr(one, name) is not None]
        found[name] = round(statistics.median(values), 4) if values else None
    return found


def by_budget(answers: Sequence[Answer], budgets: Sequence[float]) -> Rows:
    """For each budget its answers, their errors, every gap, and `medians`; no warm-ups."""
    found: Rows = {}
    for budget in budgets:
        own = [one for one in answers if one.budget == budget and not one.is_warm_up]
        found[budget] = {
            "requests": len(own),
            "errors": [one.error for one in own if one.error is not None],
            "gaps_s": [round(one.gap_s, 4) for one in own if one.gap_s is not None and one.error is None],
            **medians(own),
        }
    return found


def by_prompt(answers: Sequence[Answer], lengths: Sequence[int], budgets: Sequence[float]) -> dict[int, Rows]:
    """`by_budget` for each length of a prompt."""
    return {num: by_budget([one for one in answers if one.num_prompt_tokens == num], budgets) for num in lengths}


def gap_ratio(rows: Rows) -> float | None:
    """The gap at the smallest budget over that at 1.0; None when either was not measured or 1.0 has none."""
    lossless, lossy = rows.get(1.0), min(rows, default=1.0)
    return None if lossless is None or lossy == 1.0 else ratio(rows[lossy], lossless)


def tail_ratios(rows_by_push: Mapping[Push, Rows], push: Push) -> dict[float, float | None]:
    """For each budget the gap under `push` over that of what was sent at the end; None where either has none.

    Empty unless both were measured.
    """
    own, end = rows_by_push.get(push, {}), rows_by_push.get(Push.END, {})
    return {budget: ratio(own[budget], end[budget]) for budget in own if budget in end}


def ratio(row: Mapping[str, Any], other: Mapping[str, Any], field: str = "gap_s") -> float | None:
    """A field, by default the gap, of one row over that of another; None where either has none."""
    if row[field] is None or not other[field]:
        return None
    return round(float(row[field]) / float(other[field]), 4)


def summary(rows_by_push: Mapping[Push, Rows]) -> dict[str, Any]:
    """The ratios of one length of a prompt. Those of one push are of `planned`, else of `chunks`, else of what there is."""
    order = (Push.PLANNED, Push.CHUNKS, Push.END)
    rows = next(rows_by_push[push] for push in order if push in rows_by_push)
    largest = max(rows)
    planned = tail_ratios(rows_by_push, Push.PLANNED)
    return {
        "gap_ratio": gap_ratio(rows),
        "hidden_ratio": rows[largest]["hidden_ratio"],
        "tail_ratio": planned.get(largest),
        "tail_ratios": {f"{budget:g}": one for budget, one in planned.items()},
        "chunks_tail_ratio": tail_ratios(rows_by_push, Push.CHUNKS).get(largest),
    }


def result(measured: Measured) -> dict[str, Any]:
    """The fields of the result: the ratios of the first length on top, those of each under `prompts`, and all rows."""
    lengths = list(next(iter(measured.values())))
    summaries = {num: summary({push: found[num] for push, found in measured.items()}) for num in lengths}
    pushes = {
        push.value: {
            str(num): {"gap_ratio": gap_ratio(rows), "budgets": {f"{budget:g}": row for budget, row in rows.items()}}
            for num, rows in found.items()
        }
        for push, found in measured.items()
    }
    return summaries[lengths[0]] | {"prompts": {str(num): one for num, one in summaries.items()}, "pushes": pushes}


def has_failed(measured: Measured) -> bool:
    """Whether a request failed, or a row has none."""
    every_row = [row for found in measured.values() for rows in found.values() for row in rows.values()]
    return any(row["errors"] or not row["requests"] for row in every_row)


def table(found: Mapping[int, Rows]) -> str:
    """The medians of one push for people: a line for each length and budget."""
    headings = ["tokens", "budget", *(heading for _, heading, _ in COLUMNS)]
    lines = ["  ".join(f"{heading:>12}" for heading in headings)]
    for num_tokens, rows in found.items():
        for budget, row in rows.items():
            cells = [f"{num_tokens}", f"{budget:g}", *(cell(row[name], form) for name, _, form in COLUMNS)]
            lines.append("  ".join(f"{one:>12}" for one in cells))
        if (lossy := gap_ratio(rows)) is not None:
            lines.append(f"{num_tokens} tokens: gap at {min(rows):g} over gap at 1: {lossy:.3f}")
    return "\n".join(lines)


def cell(value: float | None, form: str) -> str:
    """A figure in a table; a dash where there is none."""
    return "-" if value is None else format(value, form)
