"""Medians, ratios and table of answers."""

from dataclasses import replace

from benchmarks.links.asking import Answer
from benchmarks.links.results import by_budget, gap_ratio, table, tail_ratios
from prefill_worker.config import Push


def answer(budget: float, ttft_s: float, second_token_s: float, *, is_warm_up: bool = False) -> Answer:
    """One that ended well."""
    return Answer(budget, is_warm_up, None, ttft_s, second_token_s, second_token_s + 1.0, kv_bytes=1_000_000)


ANSWERS = [
    answer(1.0, 2.0, 90.0, is_warm_up=True),
    answer(1.0, 2.0, 6.0),
    answer(0.3, 2.0, 3.0),
    answer(1.0, 3.0, 8.0),
    answer(0.3, 2.5, 4.0),
    answer(1.0, 2.2, 6.0),
    Answer(0.3, False, "timeout"),
]


def test_medians_are_taken_by_budget() -> None:
    """Of answers that ended well; warm-ups count nowhere, and failures by their kind."""
    rows = by_budget(ANSWERS, [1.0, 0.3])
    assert rows[1.0]["requests"] == rows[0.3]["requests"] == 3
    assert rows[1.0]["ttft_s"] == 2.2
    assert rows[1.0]["gap_s"] == 4.0
    assert rows[0.3]["gaps_s"] == [1.0, 1.5]
    assert rows[0.3]["errors"] == ["timeout"]
    assert rows[0.3]["hidden_ratio"] is None


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
    """Chunks over end; a budget that one of them has no answer for has no ratio."""
    chunks = by_budget([answer(1.0, 2.0, 3.0), answer(0.3, 2.0, 2.5)], [1.0, 0.3])
    end = by_budget([answer(1.0, 2.0, 6.0), Answer(0.3, False, "timeout")], [1.0, 0.3])
    assert tail_ratios({Push.CHUNKS: chunks, Push.END: end}) == {1.0: 0.25, 0.3: None}
    assert tail_ratios({Push.END: chunks, Push.CHUNKS: end}) == {1.0: 4.0, 0.3: None}
    assert tail_ratios({Push.CHUNKS: chunks}) == {}


def test_tails_from_different_sides_are_not_compared() -> None:
    """Where the prefill worker is not beside the router, the first token waits for the KV too."""
    here, there = (
        by_budget([replace(answer(1.0, 2.0, 3.0), is_prefill_beside_router=is_beside)], [1.0])
        for is_beside in (True, False)
    )
    assert tail_ratios({Push.CHUNKS: here, Push.END: there}) == {1.0: None}
    assert tail_ratios({Push.CHUNKS: here, Push.END: here}) == {1.0: 1.0}


def test_the_table_has_a_line_for_each_budget() -> None:
    """Missing figures are dashes; the ratio comes last."""
    lines = table(by_budget(ANSWERS, [1.0, 0.3])).splitlines()
    assert [line.split()[0] for line in lines] == ["budget", "1", "0.3", "gap"]
    assert "1,000,000" in lines[1]
    assert "-" in lines[2].split()
    assert lines[-1].endswith("0.312")
