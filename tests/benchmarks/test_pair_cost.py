"""The benchmark of the choice of a pair."""

from __future__ import annotations

import json

import pytest

from benchmarks.pair_cost import main

TIMED = ("question", "choice", "plain", "cached_none", "cached_beginning")


def test_the_last_line_is_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    """With the sizes that were asked for."""
    assert main(["--prefill", "3", "--decode", "2", "--rounds", "5"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert (result["num_prefill"], result["num_decode"], result["rounds"]) == (3, 2, 5)
    assert min(result[f"{name}_median_us"] for name in TIMED) > 0


def test_a_fleet_without_workers_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """There would be nothing to choose."""
    with pytest.raises(SystemExit):
        main(["--prefill", "0"])
    assert "at least 1" in capsys.readouterr().err
