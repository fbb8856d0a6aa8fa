"""Medians, ratios and table of answers."""

import json
from dataclasses import replace

from benchmarks.links.asking import Answer
from benchmarks.links.results import (
    by_budget,
    by_prompt,
    gap_ratio,
    has_failed,
    result,
    summary,
    table,
    tail_ratios,
)
from prefill_worker.config import Push


def answer(
    budget: float, ttft_s: float, second_token_s: float, *, num_prompt_tokens: int = 1024, is_warm_up: bool = False
) -> Answer:
    """One that ended well."""
    found = Answer(num_prompt_tokens, budget, is_warm_up, None, ttft_s, second_token_s, second_token_s + 1.0)
    return replace(found, kv_bytes=1_000_000)


LATE = Answer(1024, 0.3, False, "timeout")
ANSWERS = [
    answer(1.0, 2.0, 90.0, is_warm_up=True),
    answer(1.0, 2.0, 6.0),
    answer(0.3, 2.0, 3.0),
    answer(1.0, 3.0, 8.0),
    answer(0.3, 2.5, 4.0),
    answer(1.0, 2.2, 6.0),
    LATE,
]
END = by_budget([answer(1.0, 2.0, 6.0), LATE], [1.0, 0.3])
CHUNKS = by_budget([answer(1.0, 2.0, 4.0), answer(0.3, 2.0, 2.5)], [1.0, 0.3])
PLANNED = by_budget([replace(answer(1.0, 2.0, 3.0), hidden_ratio=0.9), answer(0.3, 2.0, 2.5)], [1.0, 0.3])
EVERY_PUSH = {Push.END: END, Push.CHUNKS: CHUNKS, Push.PLANNED: PLANNED}


def test_medians_are_taken_by_budget() -> None:
    """Of answers that ended well; warm-ups count nowhere, and failures by their kind."""
    rows = by_budget(ANSWERS, [1.0, 0.3])
    assert rows[1.0]["requests"] == rows[0.3]["requests"] == 3
    assert rows[1.0]["ttft_s"] == 2.2
    assert rows[1.0]["gap_s"] == 4.0
    assert rows[1.0]["production_mbit"] == 3.6364
    assert rows[0.3]["gaps_s"] == [1.0, 1.5]
    assert rows[0.3]["errors"] == ["timeout"]
    assert rows[0.3]["hidden_ratio"] is None


def test_lengths_are_kept_apart() -> None:
    """Each has rows of its own; one without answers has rows without requests."""
    found = by_prompt([*ANSWERS, answer(1.0, 1.0, 2.0, num_prompt_tokens=256)], [1024, 256, 7], [1.0])
    assert {num: rows[1.0]["requests"] for num, rows in found.items()} == {1024: 3, 256: 1, 7: 0}
    assert has_failed({Push.END: found})
    assert not has_failed({Push.END: {num: found[num] for num in (1024, 256)}})


def test_the_ratio_is_that_of_the_gaps() -> None:
    """The smallest budget's over lossless."""
    assert gap_ratio(by_budget(ANSWERS, [1.0, 0.3])) == 0.3125


def test_there_is_no_ratio_without_both() -> None:
    """Lossless alone, lossy alone, or one of them with no answer."""
    assert gap_ratio(by_budget(ANSWERS, [1.0])) is None
    assert gap_ratio(by_budget(ANSWERS, [0.3])) is None
    assert gap_ratio(by_budget(ANSWERS, [1.0, 0.1])) is None
    assert gap_ratio({}) is None


def test_the_tail_is_compared_at_every_budget() -> None:
    """With what was sent at the end; a budget that one of them has no answer for has no ratio."""
    assert tail_ratios(EVERY_PUSH, Push.CHUNKS) == {1.0: 0.5, 0.3: None}
    assert tail_ratios(EVERY_PUSH, Push.PLANNED) == {1.0: 0.25, 0.3: None}
    assert tail_ratios({Push.PLANNED: PLANNED}, Push.PLANNED) == {}
    assert tail_ratios({Push.END: END}, Push.PLANNED) == {}


def test_the_summary_is_the_plans() -> None:
    """At the largest budget for those who want one number; without a plan the hidden share is that of chunks."""
    found = summary(EVERY_PUSH)
    assert (found["hidden_ratio"], found["tail_ratio"], found["chunks_tail_ratio"]) == (0.9, 0.25, 0.5)
    assert found["tail_ratios"] == {"1": 0.25, "0.3": None}
    assert found["gap_ratio"] == 0.5
    without = summary({Push.END: END, Push.CHUNKS: CHUNKS})
    assert (without["hidden_ratio"], without["tail_ratio"], without["chunks_tail_ratio"]) == (None, None, 0.5)


def test_the_result_has_the_first_length_on_top() -> None:
    """And each of them below, in keys that JSON knows."""
    measured = {push: {1024: rows, 256: CHUNKS} for push, rows in EVERY_PUSH.items()}
    found = json.loads(json.dumps(result(measured)))
    assert (found["hidden_ratio"], found["tail_ratio"]) == (0.9, 0.25)
    assert {num: one["tail_ratio"] for num, one in found["prompts"].items()} == {"1024": 0.25, "256": 1.0}
    assert set(found["pushes"]) == {"end", "chunks", "planned"}
    assert set(found["pushes"]["chunks"]["1024"]["budgets"]) == {"1", "0.3"}
    assert found["pushes"]["chunks"]["1024"]["gap_ratio"] == 0.25


def test_the_table_has_a_line_for_each_length_and_budget() -> None:
    """Missing figures are dashes; the ratio comes after a length's budgets."""
    lines = table({1024: by_budget(ANSWERS, [1.0, 0.3]), 256: CHUNKS}).splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["tokens", "budget"],
        ["1024", "1"],
        ["1024", "0.3"],
        ["1024", "tokens:"],
        ["256", "1"],
        ["256", "0.3"],
        ["256", "tokens:"],
    ]
    assert "1,000,000" in lines[1]
    assert "-" in lines[2].split()
    assert lines[3].endswith("0.312")
