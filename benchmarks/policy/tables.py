"""Results of `benchmarks.policies` as Markdown. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SHARES = ("mean", "p50", "p90", "p99")


def policy_table(result: dict[str, Any]) -> str:
    """One trace at one load: a row a policy, times in seconds. Distributions are mean / P50 / P90 / P99."""
    lines = [
        f"\n{result['trace']}: {result['requests']} of {result['rows']} requests, lengths x {result['scale']}, load "
        f"{result['load']} of {result['saturation_per_s']} requests a second\n",
        "| policy | TTFT | queueing | end to end | requests/s | tokens/s | longest tenth, P99 TTFT | P99 end | over shortest |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, one in result["policies"].items():
        spreads = [
            " / ".join(f"{one[key][share]:.1f}" for share in SHARES) for key in ("ttft_s", "queueing_s", "end_to_end_s")
        ]
        numbers = [
            f"{one['requests_per_s']:.3f}",
            f"{one['output_tokens_per_s']:.1f}",
            f"{one['long_ttft_p99_s']:.1f}",
            f"{one['long_end_to_end_p99_s']:.1f}",
            f"{one['long_to_short']:.1f}",
        ]
        lines.append(f"| `{name}` | {' | '.join([*spreads, *numbers])} |")
    return "\n".join(lines)


def expectation_table(results: Sequence[dict[str, Any]]) -> str:
    """All traces and loads: the ratios of `figures.expectations`."""
    lines = [
        "\n| trace | load | spf-aging / spf, mean TTFT (<= 1.05) | P99 TTFT of the long (<= 0.5) | qba keeps of sjf's gain "
        "(>= 0.7) | qba / fcfs, P99 end of the long (<= 1.25) |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        found = result["expectations"]
        cells = ["-" if value is None else f"{value:.2f}" for value in found.values()]
        lines.append(f"| {result['trace']} | {result['load']} | {' | '.join(cells)} |")
    return "\n".join(lines)
