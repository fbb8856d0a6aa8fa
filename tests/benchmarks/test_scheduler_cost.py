"""The benchmark of the scheduler's own cost."""

from __future__ import annotations

import json

import pytest

from benchmarks.scheduler_cost import main
from scheduling.policies.choose import SERVING_POLICIES


def test_the_last_line_is_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    """Every policy with its parts, and the sizes that were asked for."""
    assert main(["--waiting", "9", "--running", "7", "--rounds", "3"]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result["policies"]) == set(SERVING_POLICIES)
    assert all(part["p10_ms"] <= part["median_ms"] for one in result["policies"].values() for part in one.values())
    assert (result["waiting"], result["running"], result["rounds"]) == (9, 7, 3)


def test_an_empty_worker_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """There would be nothing to schedule."""
    with pytest.raises(SystemExit):
        main(["--waiting", "0"])
    assert "at least 1" in capsys.readouterr().err
