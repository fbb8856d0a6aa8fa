"""Medians of the rounds that count, and the ratio of the two pushes."""

from dataclasses import replace

from benchmarks.links.competing import RoundAnswer
from benchmarks.links.competition import compete_ratio, competition_result, has_failed, row_of
from prefill_worker.config import Push
from tests.benchmarks.links.test_competing import ANSWER


def _short(second_token_s: float) -> RoundAnswer:
    """A round in which the short prompt took so long."""
    return replace(ANSWER, short_second_token_s=second_token_s)


def test_only_rounds_that_count_are_in_the_medians() -> None:
    """All others are counted."""
    apart, failed = replace(ANSWER, long_second_token_s=9.0), replace(ANSWER, error="timeout")
    row = row_of([replace(_short(1.0), is_warm_up=True), _short(4.0), _short(6.0), apart, failed])
    assert (row["rounds"], row["counted"], row["overlapped"], row["split"]) == (4, 2, 3, 4)
    assert row["errors"] == ["timeout"]
    assert (row["short_second_token_s"], row["long_second_token_s"]) == (5.0, 16.0)
    assert row["short_reserved_bytes_per_second"] is None


def test_the_plan_is_compared_with_chunks() -> None:
    """By the short prompt's time to its second token, beside what the long one pays."""
    rows = {Push.CHUNKS: row_of([_short(8.0)]), Push.PLANNED: row_of([_short(4.0)])}
    found = competition_result(rows)
    assert found["compete_ratio"] == 0.5
    assert found["short_second_token_s"] == {"chunks": 8.0, "planned": 4.0}
    assert found["long_second_token_s"] == {"chunks": 16.0, "planned": 16.0}
    assert set(found["pushes"]) == {"chunks", "planned"}
    assert not has_failed(rows)


def test_there_is_no_ratio_without_both() -> None:
    """Nor where no round of one counts; a round that failed is told, as is none at all."""
    assert compete_ratio({Push.PLANNED: row_of([_short(4.0)])}) is None
    apart = row_of([replace(ANSWER, is_split=False)])
    assert compete_ratio({Push.PLANNED: row_of([_short(4.0)]), Push.CHUNKS: apart}) is None
    assert not has_failed({Push.CHUNKS: apart})
    assert has_failed({Push.CHUNKS: row_of([replace(ANSWER, error="timeout")])})
    assert has_failed({Push.CHUNKS: row_of([])})
