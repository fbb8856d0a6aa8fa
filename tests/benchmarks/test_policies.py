"""The benchmark of policies, on a small trace."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.policies import main

ROWS = [(at, 40 + 37 * at % 400, 3 + 11 * at % 50) for at in range(40)]


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder with a trace of `ROWS`."""
    lines = [
        json.dumps({"timestamp": at * 1000, "input_length": size, "output_length": output, "hash_ids": []})
        for at, size, output in ROWS
    ]
    (tmp_path / "small.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return tmp_path


def _run(traces: Path, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    options = ["--policies", "fcfs", "sjf", "qba", "spf", "spf-aging", "--loads", "0.9", "--requests", "30"]
    assert main(["--traces", str(traces), "--files", "small.jsonl", *options]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_the_last_line_is_the_result(traces: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures of every policy, the ratios that were expected, and the same again from the same arguments."""
    out, err = _run(traces, capsys)
    result = json.loads(out.splitlines()[-1])
    (cell,) = result["results"]
    assert (cell["requests"], cell["rows"], cell["scale"], cell["load"]) == (30, 40, 1.0, 0.9)
    assert set(cell["policies"]) == {"fcfs", "sjf", "qba", "spf", "spf-aging"}
    assert set(cell["expectations"]) == {"aging_mean_ttft", "aging_long_ttft", "qba_kept_gain", "qba_long"}
    assert "| `spf-aging` |" in err
    assert _run(traces, capsys)[0] == out


def test_a_trace_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2 and a sentence, no traceback."""
    assert main(["--traces", str(tmp_path), "--files", "none.csv"]) == 2
    assert capsys.readouterr().err.startswith("policies: ")
