"""What the workers of a cluster have counted, from the router's view of it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COUNTS = (
    "num_steps",
    "num_transfers",
    "num_transfer_failures",
    "transfer_bytes",
    "num_local_prefill_tokens",
    "num_remote_prefill_tokens",
    "num_preemptions",
    "num_swaps",
)
PREFIX_COUNTS = ("num_queries", "num_query_tokens", "num_hit_tokens", "num_stored_blocks", "num_evicted_blocks")

WorkerCounts = dict[str, dict[str, int]]
"""By worker and name; those of a prefix cache begin with `prefix_`, and are missing where a worker has none."""


def counts_of(view: Mapping[str, Any]) -> WorkerCounts:
    """The counts in the router's view."""
    return {str(worker["name"]): _counts(worker) for worker in view["workers"]}


def counts_since(before: WorkerCounts, after: WorkerCounts) -> WorkerCounts:
    """What was added."""
    return {
        worker: {name: value - before.get(worker, {}).get(name, 0) for name, value in counts.items()}
        for worker, counts in after.items()
    }


def _counts(worker: Mapping[str, Any]) -> dict[str, int]:
    counts = {name: int(worker["status"][name]) for name in COUNTS if name in worker["status"]}
    prefixes = worker.get("prefix_cache") or {}
    return counts | {f"prefix_{name}": int(prefixes[name]) for name in PREFIX_COUNTS if name in prefixes}
