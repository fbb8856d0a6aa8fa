"""Answers to medians, a table, and what one budget, or one time of pushing, gains over another. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from benchmarks.links.asking import Answer
from prefill_worker.config import Push

Rows: TypeAlias = dict[float, dict[str, Any]]
"""A row for each budget: see `by_budget`."""

COLUMNS = (
    ("ttft_s", "first token s", "8.3f"),
    ("second_token_s", "second s", "8.3f"),
    ("gap_s", "gap s", "8.3f"),
    ("kv_bytes", "KV bytes", "10,.0f"),
    ("cable_start_s", "KV from s", "8.3f"),
    ("cable_end_s", "KV to s", "8.3f"),
    ("hidden_ratio", "hidden", "6.3f"),
    ("cable_hidden_ratio", "of the cable's", "6.3f"),
    ("rate_mbit", "Mbit/s", "7.2f"),
)


def medians(answers: Sequence[Answer]) -> dict[str, float | None]:
    """The median of every measured field over the answers that ended well; None where no answer has it."""
    found: dict[str, float | None] = {}
    for name, _, _ in COLUMNS:
        values = [getattr(one, name) for one in answers if one.error is None and getattr(one, name) is not None]
        found[name] = round(statistics.median(values), 4) if values else None
    return found


def by_budget(answers: Sequence[Answer], budgets: Sequence[float]) -> Rows:
    """For each budget its answers, their errors, the prefill worker's place, every gap, and `medians`; no warm-ups."""
    found: Rows = {}
    for budget in budgets:
        own = [one for one in answers if one.budget == budget and not one.is_warm_up]
        found[budget] = {
            "requests": len(own),
            "errors": [one.error for one in own if one.error is not None],
            "is_prefill_beside_router": next((one.is_prefill_beside_router for one in own), None),
            "gaps_s": [round(one.gap_s, 4) for one in own if one.gap_s is not None and one.error is None],
            **medians(own),
        }
    return found


def gap_ratio(rows: Rows) -> float | None:
    """The gap at the smallest budget over that at 1.0; None when either was not measured or 1.0 has none."""
    lossless, lossy = rows.get(1.0), min(rows, default=1.0)
    if lossless is None or lossy == 1.0 or not lossless["gap_s"] or rows[lossy]["gap_s"] is None:
        return None
    return round(float(rows[lossy]["gap_s"]) / float(lossless["gap_s"]), 4)


def tail_ratios(rows_by_push: Mapping[Push, Rows]) -> dict[float, float | None]:
    """For each budget the gap of what was pushed in chunks over that of what was sent at the end.

    None where either has none, or where Ray put the prefill worker on the other side of the cable: these gaps do not mean
    the same. Empty unless both were measured.
    """
    chunks, end = rows_by_push.get(Push.CHUNKS, {}), rows_by_push.get(Push.END, {})
    return {budget: _tail_ratio(chunks[budget], end[budget]) for budget in chunks if budget in end}


def _tail_ratio(chunks: Mapping[str, Any], end: Mapping[str, Any]) -> float | None:
    is_comparable = chunks["is_prefill_beside_router"] == end["is_prefill_beside_router"]
    if not is_comparable or chunks["gap_s"] is None or not end["gap_s"]:
        return None
    return round(float(chunks["gap_s"]) / float(end["gap_s"]), 4)


def table(rows: Rows) -> str:
    """The medians for people."""
    lines = ["budget  " + "  ".join(f"{heading:>14}" for _, heading, _ in COLUMNS)]
    for budget, row in rows.items():
        cells = ["-" if row[name] is None else format(row[name], form) for name, _, form in COLUMNS]
        lines.append(f"{budget:6g}  " + "  ".join(f"{cell.strip():>14}" for cell in cells))
    if (ratio := gap_ratio(rows)) is not None:
        lines.append(f"gap at {min(rows):g} over gap at 1: {ratio:.3f}")
    return "\n".join(lines)
