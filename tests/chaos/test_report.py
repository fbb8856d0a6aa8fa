"""The summary: its figures, and what makes a run fail."""

from __future__ import annotations

import json
import math

from tests.chaos.faults import Done
from tests.chaos.judge import Judgement, Ruling, Trouble
from tests.chaos.outcomes import Outcome
from tests.chaos.questions import Ask, Door, Manner, Question
from tests.chaos.report import Report, cut_gaps, percentile
from tests.chaos.schedule import Fault, FaultKind

ASK = Ask(7, Question(0, (65,), "", {}), Door.COMPLETIONS, Manner.STREAM)


def _judged(ruling: Ruling = Ruling.RIGHT, *, gap_s: float = 0.0, gap_began_at: float = 0.0) -> Judgement:
    outcome = Outcome(ASK, started_at=0.0, ended_at=60.0)
    outcome.longest_gap_s, outcome.gap_began_at = gap_s, gap_began_at
    return Judgement(outcome, ruling, "so it was")


def _done(kind: FaultKind = FaultKind.KILL_DECODE, *, since: float = 10.0, served_s: float = 1.5) -> Done:
    return Done(Fault(0, 5, kind, 0, 0.0), Trouble(kind, since, since + 9.0), served_s, 8.0)


def _report(judged: list[Judgement], done: list[Done], complaints: tuple[str, ...] = ()) -> Report:
    return Report(1, judged, done, {"drop": 2}, {"decode slots": 0.0}, 1, complaints, 12.0)


def test_a_good_run_has_no_failures_and_its_figures_are_json() -> None:
    """The last line is one object; the table names every fault and ending."""
    report = _report([_judged(), _judged(Ruling.LEFT), _judged(Ruling.EXCUSED)], [_done()])
    assert report.failures == []
    figures = json.loads(json.dumps(report.as_json()))
    assert figures["outcomes"] == {"right": 1, "client left": 1, "excused error": 1}
    assert figures["faults"] == {"kill a decode worker": 1}
    assert figures["served_s"] == {"p50": 1.5, "p99": 1.5, "max": 1.5}
    text = "\n".join(report.lines())
    assert "kill a decode worker" in text
    assert "drop a chunk" in text
    assert "FAILED" not in text


def test_each_way_to_fail_is_told() -> None:
    """A wrong or lost request, what was left behind, a slow recovery; a stream that was cut for long is a figure."""
    report = _report(
        [_judged(Ruling.WRONG), _judged(gap_s=7.0, gap_began_at=9.0)], [_done(served_s=11.0)], ("a lease",)
    )
    assert len(report.failures) == 3
    assert report.as_json()["resumed_in_time"] == 0.0
    nowhere_to_go = _report([_judged(gap_s=7.0, gap_began_at=9.0)], [_done(FaultKind.KILL_DECODES)])
    assert nowhere_to_go.as_json()["resumed_in_time"] is None
    assert "request 7" in report.failures[0]
    assert "\n".join(report.lines()).count("FAILED") == 3


def test_where_no_decode_worker_is_left_a_process_has_to_start() -> None:
    """Which takes its time, but not for ever."""
    kind = FaultKind.KILL_DECODES
    assert [len(_report([], [_done(kind, served_s=served_s)]).failures) for served_s in (20.0, 31.0)] == [0, 1]


def test_a_slow_router_is_no_slow_worker() -> None:
    """The bound on being served again is that of killed workers."""
    assert _report([], [_done(FaultKind.KILL_ROUTER, served_s=20.0)]).failures == []


def test_only_a_pause_that_spans_the_fault_is_a_cut() -> None:
    """Others have other reasons."""
    judged = [
        _judged(gap_s=3.0, gap_began_at=9.0),
        _judged(gap_s=0.5, gap_began_at=9.0),
        _judged(gap_s=9.0, gap_began_at=11.0),
    ]
    assert cut_gaps(judged, [_done()]) == [3.0]


def test_percentiles_are_values_that_were_there() -> None:
    """The nearest rank; of nothing there is none."""
    values = [float(number) for number in range(1, 101)]
    assert [percentile(values, share) for share in (0.5, 0.99, 1.0)] == [50.0, 99.0, 100.0]
    assert percentile([3.0], 0.5) == 3.0
    assert math.isnan(percentile([], 0.5))
