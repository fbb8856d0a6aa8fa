"""What prefix caches have done for a load: figures of each cluster, and how they compare. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.load.conversations import Answered
from benchmarks.load.prefix_mix import Kind
from benchmarks.load.statistics import RequestRecord, spread
from benchmarks.load.worker_counts import WorkerCounts

OFF = "off"
SHARES = ("mean", "p50", "p90", "p99")


@dataclass(frozen=True, slots=True)
class Served:
    """A cluster with one rule of eviction, or without a cache (`off`), and what it answered."""

    mode: str
    kv_cache_memory: str
    answers: Sequence[Answered]
    workers: WorkerCounts

    @property
    def has_failed(self) -> bool:
        """Whether an answer is missing."""
        return any(one.record.error is not None for one in self.answers)

    def figures(self) -> dict[str, Any]:
        """TTFT in seconds, and of all prompt tokens the share that no worker computed; by kind of prompt too."""
        by_kind = {kind: [one.record for one in self.answers if one.kind is kind] for kind in Kind}
        return {
            "mode": self.mode,
            "kv_cache_memory": self.kv_cache_memory,
            **_figures([one.record for one in self.answers]),
            "by_kind": {kind.value: _figures(records) for kind, records in by_kind.items()},
            "workers": self.workers,
        }


def _figures(records: Sequence[RequestRecord]) -> dict[str, Any]:
    done = [record for record in records if record.error is None]
    num_prompt, num_cached = (
        sum(one.prompt_tokens for one in done),
        sum(one.cached_tokens for one in done),
    )
    return {
        "requests": len(records),
        "errors": sorted(record.error for record in records if record.error is not None),
        "ttft_s": spread([record.ttft_s for record in done if record.ttft_s is not None]),
        "prompt_tokens": num_prompt,
        "cached_tokens": num_cached,
        "hit_rate": round(num_cached / num_prompt, 4) if num_prompt else None,
    }


def comparison(served: Sequence[Served]) -> dict[str, Any]:
    """The ratios of TTFT, by mode and memory: over the cluster without a cache, and of `arc` over `lru` with as much memory.

    `same_answers` is the share of the prompts that were answered word by word as without a cache. None where there is nothing
    to compare with.
    """
    off = next((one for one in served if one.mode == OFF), None)
    by_name = {(one.mode, one.kv_cache_memory): one for one in served}
    over_off = {}
    for one in served:
        if off is not None and one is not off:
            over_off[f"{one.mode} {one.kv_cache_memory}"] = {
                **_ratios(one, off),
                "same_answers": _same_answers(one, off),
            }
    arc_over_lru = {}
    for (mode, memory), one in by_name.items():
        if mode == "arc" and (lru := by_name.get(("lru", memory))) is not None:
            arc_over_lru[memory] = _ratios(one, lru)
    return {"over_off": over_off, "arc_over_lru": arc_over_lru}


def _ratios(one: Served, other: Served) -> dict[str, float | None]:
    mine, its = one.figures()["ttft_s"], other.figures()["ttft_s"]
    return {f"ttft_{share}": round(mine[share] / its[share], 4) if mine and its else None for share in SHARES}


def _same_answers(one: Served, other: Served) -> float:
    pairs = [*zip(one.answers, other.answers, strict=True)]
    return round(sum(mine.record.text == its.record.text for mine, its in pairs) / len(pairs), 4)


def table(served: Sequence[Served]) -> str:
    """Markdown, a row for each cluster."""
    kinds = [kind.value for kind in Kind]
    lines = [
        "| cache | KV memory | TTFT mean / P50 / P90 / P99, s | prompt tokens found | "
        + " | ".join(f"{kind}: TTFT mean, found" for kind in kinds)
        + " | evicted blocks |",
        "|---" * (5 + len(kinds)) + "|",
    ]
    for one in served:
        figures = one.figures()
        evicted = sum(counts.get("prefix_num_evicted_blocks", 0) for counts in one.workers.values())
        cells = [
            one.mode,
            one.kv_cache_memory,
            " / ".join(f"{figures['ttft_s'][share]:.2f}" for share in SHARES) if figures["ttft_s"] else "-",
            _percent(figures["hit_rate"]),
            *(_mean_and_found(figures["by_kind"][kind]) for kind in kinds),
            str(evicted),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mean_and_found(figures: dict[str, Any]) -> str:
    return f"{figures['ttft_s']['mean']:.2f}, {_percent(figures['hit_rate'])}" if figures["ttft_s"] else "-"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.1%}"
