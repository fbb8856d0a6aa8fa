"""The summary of a run: faults by kind, how requests ended, how long recovery took, what was left. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.faults import Done
from tests.chaos.judge import Judgement, Ruling
from tests.chaos.outcomes import Outcome
from tests.chaos.schedule import Deed, FaultKind

SERVED_WITHIN_S, RESUMED_WITHIN_S = 10.0, 5.0
"""After SIGKILL of a worker: until the next request is served, and until streams that were cut go on, where another decode
worker is left. Only the first is a condition here: pools are exhausted on purpose, and a stream that moves waits for room.
"""
STARTED_WITHIN_S = 30.0
"""Where none is left: until a new process serves."""
MAX_TOLD = 20


@dataclass(frozen=True, slots=True)
class Report:
    """What a run has found. `complaints` are about the cluster, not about a request."""

    seed: int
    judgements: Sequence[Judgement]
    done: Sequence[Done]
    injected: Mapping[str, int]
    lows: Mapping[str, float]
    num_restarts: int
    complaints: Sequence[str]
    seconds: float
    unserved: Sequence[Judgement] = field(default=())
    health_s: Sequence[float] = field(default=())

    @property
    def failures(self) -> list[str]:
        """Why the run has failed; empty for one that has not."""
        found = [
            f"request {one.outcome.ask.number} ({one.outcome.ask.door}, {one.outcome.ask.manner}, question "
            f"{one.outcome.ask.question.number}): {one.ruling}: {one.reason}"
            for one in (*self.judgements, *self.unserved)
            if one.ruling.is_failure
        ]
        return [*found, *self.complaints, *self._late_recoveries()]

    def _late_recoveries(self) -> list[str]:
        kills = [one for one in self.done if one.fault.kind.deed is Deed.KILL and not one.fault.kind.is_to_router]
        late = [one for one in kills if one.served_s > _served_within_s(one)]
        return [f"fault {one.fault.number} ({one.fault}): served only after {one.served_s:.1f} s" for one in late]

    def as_json(self) -> dict[str, Any]:
        """The figures."""
        kills = [one for one in self.done if one.fault.kind.deed is Deed.KILL]
        gaps = cut_gaps(self.judgements, [one for one in kills if one.fault.kind is not FaultKind.KILL_DECODES])
        return {
            "seed": self.seed,
            "requests": len(self.judgements),
            "outcomes": dict(Counter(one.ruling.value for one in self.judgements)),
            "excused": dict(Counter(one.reason for one in self.judgements if one.ruling is Ruling.EXCUSED)),
            "faults": dict(Counter(one.fault.kind.value for one in self.done)),
            "chunks_harmed": dict(self.injected),
            "restarts": self.num_restarts,
            "least_free": {name: round(share, 3) for name, share in sorted(self.lows.items())},
            "served_s": _percentiles([one.served_s for one in self.done]),
            "whole_s": _percentiles([one.whole_s for one in self.done]),
            "resumed_s": _percentiles(gaps),
            "health_s": _percentiles(self.health_s),
            "resumed_in_time": round(sum(gap <= RESUMED_WITHIN_S for gap in gaps) / len(gaps), 3) if gaps else None,
            "failures": len(self.failures),
            "seconds": round(self.seconds, 1),
        }

    def lines(self) -> list[str]:
        """The table for people."""
        by_kind: defaultdict[str, list[Done]] = defaultdict(list)
        for one in self.done:
            by_kind[one.fault.kind.value].append(one)
        lines = [f"{'fault':<28} {'times':>5}  {'next served p50/p99':>20}  {'whole again p50/p99':>20}"]
        for kind, done in sorted(by_kind.items()):
            served, whole = (_spread([getattr(one, name) for one in done]) for name in ("served_s", "whole_s"))
            lines.append(f"{kind:<28} {len(done):>5}  {served:>20}  {whole:>20}")
        lines += [f"{f'{kind} a chunk':<28} {count:>5}" for kind, count in sorted(self.injected.items())]
        lines += ["", f"{'requests that ended as':<28} {'times':>5}"]
        counts = Counter(one.ruling for one in self.judgements)
        lines += [f"{ruling:<28} {counts[ruling]:>5}" for ruling in Ruling if counts[ruling]]
        lines += ["", "least free: " + ", ".join(f"{name} {share:.0%}" for name, share in sorted(self.lows.items()))]
        failures = self.failures
        lines += [f"FAILED: {text}" for text in failures[:MAX_TOLD]]
        lines += [f"... and {len(failures) - MAX_TOLD} more"] if len(failures) > MAX_TOLD else []
        return lines


def _served_within_s(done: Done) -> float:
    return STARTED_WITHIN_S if done.fault.kind is FaultKind.KILL_DECODES else SERVED_WITHIN_S


def cut_gaps(judgements: Sequence[Judgement], done: Sequence[Done]) -> list[float]:
    """The longest pause of each stream that a fault cut: one that began before the fault's recovery and ended after it."""
    return [
        one.outcome.longest_gap_s
        for one in judgements
        if one.ruling is Ruling.RIGHT and any(_is_cut_by(one.outcome, fault) for fault in done)
    ]


def _is_cut_by(outcome: Outcome, done: Done) -> bool:
    """Whether the stream's longest pause spans the fault."""
    began = outcome.gap_began_at
    return began <= done.trouble.since <= began + outcome.longest_gap_s


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of the values does not exceed; NaN of none."""
    if not values:
        return math.nan
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _percentiles(values: Sequence[float]) -> dict[str, float]:
    if not values:
        return {}
    return {name: round(percentile(values, share), 3) for name, share in (("p50", 0.5), ("p99", 0.99), ("max", 1.0))}


def _spread(values: Sequence[float]) -> str:
    return f"{percentile(values, 0.5):.1f} / {percentile(values, 0.99):.1f} s"
