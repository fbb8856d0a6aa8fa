"""The benchmark of the policies on a cluster: what it starts and sends, with no cluster."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import policies_serving
from benchmarks.load.client import LoadRequest
from benchmarks.load.on_cluster import OnCluster
from benchmarks.load.statistics import RequestRecord
from benchmarks.policies_serving import main, parse_arguments, workload_of


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[list[str], list[LoadRequest]]]:
    """Clusters that are not there: their options and requests. Every prompt takes as many seconds as it has hundreds."""
    started: list[tuple[list[str], list[LoadRequest]]] = []

    def run(options: list[str], timeout_s: float, ask: Any) -> OnCluster[tuple[list[RequestRecord], float]]:
        requests = ask.keywords["requests"]
        started.append((options, requests))
        records = [RequestRecord((len(one.prompt) / 100,), 1.0, one.output_tokens) for one in requests]
        return OnCluster((records, 1.0), {})

    monkeypatch.setattr(policies_serving, "on_cluster", run)
    monkeypatch.setattr("benchmarks.load.on_cluster.interrupt_once", lambda: None)
    return started


def test_every_policy_gets_the_same_requests_at_the_rate_that_was_found(
    runs: list[tuple[list[str], list[LoadRequest]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Each on both kinds of workers, after a backlog under `fcfs`."""
    assert main(["--policies", "spf", "qba", "--requests", "20", "--backlog", "4", "--", "--prefill", "2"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    backlog, spf, qba = runs
    assert backlog[0][1:] == ["--prefill-policy", "fcfs", "--decode-policy", "fcfs", "--prefill", "2"]
    assert qba[0][1:5] == ["--prefill-policy", "qba", "--decode-policy", "qba"]
    assert [one.arrival_s for one in backlog[1]] == [0.0] * 4
    assert spf[1] == qba[1]
    assert result["rate_per_s"] == pytest.approx(0.9 * result["saturation_per_s"], abs=1e-3)
    assert list(result["policies"]) == ["spf", "qba"]


def test_a_given_rate_needs_no_backlog(
    runs: list[tuple[list[str], list[LoadRequest]]], capsys: pytest.CaptureFixture[str]
) -> None:
    """As with --smoke, which has one."""
    assert main(["--smoke"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(runs) == 2
    assert (result["saturation_per_s"], result["rate_per_s"]) == (None, 2.0)
    assert result["over_fcfs"]["spf"]["ttft_s_mean"] == 1.0


def test_a_trace_may_be_the_load(tmp_path: Path) -> None:
    """Scaled to the context."""
    rows = [{"timestamp": n * 1000, "input_length": 4000, "output_length": 96, "hash_ids": []} for n in range(5)]
    trace = tmp_path / "some.jsonl"
    trace.write_text("\n".join(map(json.dumps, rows)))
    load = workload_of(parse_arguments(["--trace", str(trace), "--context", "1024", "--requests", "3"]))
    assert (load.scale, len(load.jobs), load.jobs[0].num_prompt) == (0.25, 3, 1000)


def test_a_trace_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, before any cluster is started."""
    assert main(["--trace", str(tmp_path / "none.jsonl")]) == 2
    assert "none.jsonl" in capsys.readouterr().err


@pytest.mark.parametrize("wrong", ["--requests 1", "--load 0", "-- --decode-policy spf"])
def test_what_cannot_be_measured_is_refused(wrong: str, capsys: pytest.CaptureFixture[str]) -> None:
    """With the name of the option."""
    with pytest.raises(SystemExit) as ended:
        parse_arguments(wrong.split())
    assert ended.value.code == 2
    assert "--" in capsys.readouterr().err
