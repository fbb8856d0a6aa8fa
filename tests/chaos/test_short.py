"""The short form of the fault bench: a fixed seed, each kind of fault once, on a real cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.chaos.bench import Plan, run
from tests.chaos.schedule import SHORT_KINDS, schedule
from tests.support.tiny_directory import write_tiny_model

SEED, NUM_REQUESTS = 7, 200


@pytest.mark.system
@pytest.mark.timeout(600)
def test_nothing_is_wrong_lost_or_left(tmp_path: Path) -> None:
    """Under kills, pauses, a hang, a router's restart and harmed chunks every request ends as it may, and nothing is left."""
    plan = Plan(
        seed=SEED,
        num_requests=NUM_REQUESTS,
        num_questions=40,
        concurrency=12,
        faults=schedule(SEED, NUM_REQUESTS, len(SHORT_KINDS), SHORT_KINDS),
        transfer_faults=f"corrupt=0.02,drop=0.005,duplicate=0.03,delay=0.03,delay_s=0.3,seed={SEED}",
    )
    report = run(plan, write_tiny_model(tmp_path / "tiny"), _say)
    _say("\n".join(report.lines()))
    assert report.failures == []
    assert len(report.done) == len(SHORT_KINDS)
    assert report.injected
    assert report.lows["decode slots"] == 0.0


def _say(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")
