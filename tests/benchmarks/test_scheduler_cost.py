"""The benchmark of the scheduler's own cost."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from benchmarks.policy.prefix_lookup import Lookup
from benchmarks.scheduler_cost import bar, main
from scheduling.policies.choose import SERVING_POLICIES


def test_the_last_line_is_the_result(capsys: pytest.CaptureFixture[str]) -> None:
    """Every policy with its parts, the look-up, the bars, and the sizes that were asked for."""
    small = ["--prompt-tokens", "64", "--cached-prompts", "3"]
    assert main(["--waiting", "9", "--running", "7", "--rounds", "3", *small]) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(result["policies"]) == set(SERVING_POLICIES)
    assert all(part["p10_ms"] <= part["median_ms"] for one in result["policies"].values() for part in one.values())
    assert set(result["prefix"]["look_up"]) == {"all_found", "half_found", "none_found"}
    assert set(result["bars"]) == {"step", "prefix_look_up"}
    assert (result["waiting"], result["running"], result["rounds"]) == (9, 7, 3)


def test_a_bar_is_held_by_the_slowest() -> None:
    """The limit itself is within it."""
    fast, slow = {"median_ms": 0.25}, {"median_ms": 1.0}
    assert bar(1.0, [fast, slow]) == {"limit_ms": 1.0, "slowest_median_ms": 1.0, "holds": True}
    assert not bar(0.5, [fast, slow])["holds"]


def _run_once(run: Callable[[], object]) -> dict[str, float]:
    run()
    return {}


def test_prompts_are_found_whole_by_half_and_not_at_all() -> None:
    """All but the last block of what is cached, which is computed; and after it nobody holds a block."""
    lookup = Lookup(num_prompts=5, num_tokens=64, seed=0)
    lookup.measure(_run_once)
    counted = lookup.cache.counters
    assert (counted.num_hit_blocks, counted.num_queries) == (2 + 2 + 3 + 2 + 0, 5 + 3)
    assert lookup.cache.num_blocks == 3 * 2 + 5 * 2
    assert lookup.pool.num_free == lookup.pool.num_blocks
    lookup.cache.check_integrity()


def test_an_empty_worker_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """There would be nothing to schedule."""
    with pytest.raises(SystemExit):
        main(["--waiting", "0"])
    assert "at least 1" in capsys.readouterr().err
