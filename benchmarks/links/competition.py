"""What became of the rounds of the competition: medians of those that count, and what the plan gains. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from benchmarks.links.competing import RoundAnswer
from prefill_worker.config import Push

Competition: TypeAlias = dict[Push, dict[str, Any]]
"""The row of each push: see `row_of`."""

FIELDS = (
    "delay_s",
    "short_ttft_s",
    "short_second_token_s",
    "long_ttft_s",
    "long_second_token_s",
    "long_end_s",
    "short_reserved_bytes_per_second",
    "short_achieved_bytes_per_second",
    "long_reserved_bytes_per_second",
    "long_achieved_bytes_per_second",
)


def row_of(answers: Sequence[RoundAnswer]) -> dict[str, Any]:
    """How many rounds there were, overlapped, were split over both prefill workers and count; and medians of those that do."""
    own = [one for one in answers if not one.is_warm_up]
    counted = [one for one in own if one.counts]
    row: dict[str, Any] = {
        "rounds": len(own),
        "errors": [one.error for one in own if one.error is not None],
        "overlapped": sum(one.is_overlapped for one in own),
        "split": sum(one.is_split for one in own),
        "counted": len(counted),
    }
    for name in FIELDS:
        values = [getattr(one, name) for one in counted if getattr(one, name) is not None]
        row[name] = round(statistics.median(values), 4) if values else None
    return row


def compete_ratio(rows: Mapping[Push, Mapping[str, Any]]) -> float | None:
    """The short prompt's time to the second token under the plan over that of chunks; None unless both were measured."""
    planned, chunks = (rows.get(push, {}).get("short_second_token_s") for push in (Push.PLANNED, Push.CHUNKS))
    if planned is None or not chunks:
        return None
    return round(float(planned) / float(chunks), 4)


def competition_result(rows: Competition) -> dict[str, Any]:
    """The fields of the result."""
    return {
        "compete_ratio": compete_ratio(rows),
        "short_second_token_s": {push.value: row["short_second_token_s"] for push, row in rows.items()},
        "long_second_token_s": {push.value: row["long_second_token_s"] for push, row in rows.items()},
        "pushes": {push.value: row for push, row in rows.items()},
    }


def has_failed(rows: Competition) -> bool:
    """Whether a round failed, or there was none."""
    return any(row["errors"] or not row["rounds"] for row in rows.values())
