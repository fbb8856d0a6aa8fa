"""The tables for the documentation."""

from dataclasses import replace

from benchmarks.links.competition import row_of
from benchmarks.links.report import COMPETITION_HEADINGS, HEADINGS, report
from benchmarks.links.results import by_prompt
from prefill_worker.config import Push
from tests.benchmarks.links.test_competing import ANSWER
from tests.benchmarks.links.test_results import answer


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_what_is_to_be_compared_stands_together() -> None:
    """Lines go by rate, length and push; gaps are over that of what was sent at the end."""
    end = [replace(answer(1.0, 2.0, 6.0, num_prompt_tokens=num), cable_end_s=5.0) for num in (256, 512)]
    planned = [
        replace(
            answer(1.0, 2.0, 3.0, num_prompt_tokens=num),
            hidden_ratio=0.95,
            cable_end_s=2.3,
            reserved_bytes_per_second=2.5e6,
            achieved_bytes_per_second=2.25e6,
        )
        for num in (256, 512)
    ]
    measured = {push: by_prompt(own, [256, 512], [1.0]) for push, own in ((Push.END, end), (Push.PLANNED, planned))}
    lines = [_cells(line) for line in report({25.0: measured, 100.0: measured}, {}).splitlines()]
    assert lines[0] == list(HEADINGS)
    assert [line[:3] for line in lines[2:6]] == [
        ["25", "256", "(a) end"],
        ["25", "256", "(c) planned"],
        ["25", "512", "(a) end"],
        ["25", "512", "(c) planned"],
    ]
    assert lines[2][3:] == ["2.00", "6.00", "4.00", "-", "4", "-", "-", "-", "3.000", "-"]
    assert lines[3][3:] == ["2.00", "3.00", "1.00", "0.95", "4", "2.50", "2.25", "0.25", "0.300", "0.10"]
    assert len(lines) == 2 + 2 * 4


def test_a_lossy_budget_is_named() -> None:
    """Without what was sent at the end there is nothing to compare with."""
    rows = by_prompt([answer(0.3, 2.0, 3.0)], [1024], [0.3])
    cells = _cells(report({25.0: {Push.CHUNKS: rows}}, {}).splitlines()[-1])
    assert (cells[2], *cells[-3:]) == ("(b) chunks, at 0.3", "-", "-", "-")


def test_the_competition_has_a_table_of_its_own() -> None:
    """A line for each push; the ratio stands with the plan."""
    rows = {
        Push.CHUNKS: row_of([ANSWER]),
        Push.PLANNED: row_of(
            [replace(ANSWER, short_second_token_s=2.5, short_reserved_bytes_per_second=1e6), replace(ANSWER, error="x")]
        ),
    }
    lines = [_cells(line) for line in report({}, {25.0: rows}).splitlines()]
    assert lines[0] == list(COMPETITION_HEADINGS)
    assert lines[2][:6] == ["25", "(b) chunks", "2.00", "5.00", "10.00", "16.00"]
    assert lines[2][6:] == ["-, -", "-, -", "1 of 1", "-"]
    assert lines[3][6:] == ["1.00, -", "-, -", "1 of 2", "0.50"]
    assert report({}, {}) == ""
