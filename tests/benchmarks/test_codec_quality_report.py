"""The table and the plot of the quality benchmark: what is in them, from plain rows."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.codec_quality import main
from benchmarks.quality.report import check_can_plot, plot, series_of, table
from protocol.errors import ConfigError
from tests.support.tiny_directory import write_tiny_model


def row(codec: str, ratio: float, kl: float, importance: str | None = None, sinks: int | None = None) -> dict[str, Any]:
    """A row as the benchmark makes it."""
    budget = ratio if importance else None
    return {
        "codec": codec,
        "budget": budget,
        "importance": importance,
        "sinks": sinks,
        "wire_ratio": ratio,
        "kl": kl,
        "kl_per_window": (kl,),
        "needles": "3/3",
        "needle_trials": 3,
    }


ROWS = [
    row("native", 2.0, 0.0),
    row("channel", 0.36, 0.001, "window", 4),
    row("channel", 0.3, 0.003, "window", 4),
    row("channel", 0.3, 0.004, "random", 4),
    row("spectrum", 0.3, 0.02, "window", 4),
    row("uniform-int8", 0.52, 0.0001),
    row("fp8", 0.52, 0.001),
    row("drop", 0.3, 0.2, "first-and-last", 7),
    row("drop", 0.5, 0.1, "first-and-last", 64),
    row("drop", 0.5, 0.2, "window", 4),
]


def gids(path: Path) -> list[str]:
    """Names of the groups that hold a series."""
    names = [element.get("id", "") for element in ElementTree.parse(path).iter()]
    return [name for name in names if name.startswith(("line:", "points:"))]


def test_a_table_has_a_line_for_every_row() -> None:
    """A head, a rule, and the rows, with blanks for what a codec has no choice of."""
    lines = table(ROWS).splitlines()
    assert lines[0] == "| codec | budget | importance | sinks | wire_ratio | kl | needles |"
    assert len(lines) == 2 + len(ROWS)
    assert lines[2] == "| native |  |  |  | 2.0 | 0.0 | 3/3 |"


def test_a_plot_has_a_line_for_every_codec_and_importance(tmp_path: Path) -> None:
    """Codecs with a choice are lines, the others and dropping are points; what loses nothing has no logarithm."""
    path = tmp_path / "quality.svg"
    plot(ROWS, path, "a model")
    assert ElementTree.parse(path).getroot().tag.endswith("svg")
    assert gids(path) == [
        "line:channel, window",
        "line:channel, random",
        "line:spectrum, window",
        "points:uniform-int8",
        "points:fp8",
        "points:drop, first-and-last",
        "points:drop, window",
    ]


def test_a_plot_is_the_same_every_time(tmp_path: Path) -> None:
    """Same rows, same bytes: a figure in the documentation changes only with its numbers."""
    plot(ROWS, tmp_path / "one.svg", "a model")
    plot(ROWS, tmp_path / "two.svg", "a model")
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "two.svg").read_bytes()


def test_series_are_in_the_order_of_bytes_and_told_apart_by_sinks() -> None:
    """A codec measured with several numbers of sinks has a line for each."""
    found = series_of([*ROWS, row("channel", 0.3, 0.002, "window", 16)])
    assert [one["wire_ratio"] for one in found["channel, window, 4 sinks"]] == [0.3, 0.36]
    assert "channel, window, 16 sinks" in found
    assert "spectrum, window" in found
    assert "native" not in found


def test_the_benchmark_draws_its_rows(tmp_path: Path) -> None:
    """One line of the command makes the file."""
    model = write_tiny_model(tmp_path / "tiny")
    sizes = ["--windows", "1", "--context-tokens", "200", "--continued-tokens", "12"]
    cases = ["--codec", "channel", "fp8", "--budget", "0.5", "0.7", "--drop", "window"]
    assert main(["--model", str(model), *sizes, *cases, "--plot", str(tmp_path / "quality.svg")]) == 0
    assert gids(tmp_path / "quality.svg") == ["line:channel, window", "points:fp8", "points:drop, window"]


@pytest.mark.parametrize(("name", "reason"), [("quality.png", "must end in .svg"), ("no/quality.svg", "not a dir")])
def test_a_plot_that_cannot_be_written_is_refused_first(name: str, reason: str, tmp_path: Path) -> None:
    """Before anything is measured."""
    with pytest.raises(ConfigError, match=reason):
        check_can_plot(tmp_path / name)


def test_without_matplotlib_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says what to install."""
    monkeypatch.setattr(sys, "path", [])
    monkeypatch.delitem(sys.modules, "matplotlib", raising=False)
    with pytest.raises(ConfigError, match=r"kvferry\[dev\]"):
        check_can_plot(tmp_path / "quality.svg")
