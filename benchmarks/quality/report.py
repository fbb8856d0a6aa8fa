"""What was measured, as a Markdown table and as a plot: KL against bytes. Knows rows of plain values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.quality.cases import DROP
from protocol.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Row = Mapping[str, Any]

_COLOURS = ("native", "channel", "spectrum", "uniform-int8", "uniform-int4", "fp8", DROP)
_LINES = {"window": ("-", "o"), "positional": ("--", "s"), "key-norm": ("-.", "^"), "random": (":", "x")}
_OTHER_LINE = ("-", "D")
_NO_COLUMNS = ("kl_per_window", "needle_trials")


def table(rows: Sequence[Row]) -> str:
    """The rows in Markdown, as the documentation has them."""
    shown = [name for name in rows[0] if name not in _NO_COLUMNS] if rows else []
    lines = [shown, ["---"] * len(shown)]
    lines += [["" if row[name] is None else str(row[name]) for name in shown] for row in rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def check_can_plot(path: Path) -> None:
    """Raises `ConfigError` when a plot could not be drawn or written: better now than after the measurement."""
    if path.suffix.lower() != ".svg":
        raise ConfigError(f"--plot writes SVG: {path} must end in .svg", param="plot")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot: {path.parent} is not a directory", param="plot")
    if find_spec("matplotlib") is None:
        raise ConfigError("--plot needs matplotlib: pip install 'kvferry[dev]'", param="plot")


def series_of(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows that belong together, by name, each in the order of bytes; those without loss have no place on a log axis."""
    has_sinks = {(row["codec"], row["sinks"]) for row in rows if row["codec"] != DROP and row["sinks"] is not None}
    several = {codec for codec, _ in has_sinks if sum(other == codec for other, _ in has_sinks) > 1}
    found: dict[str, list[Row]] = {}
    for row in rows:
        name = ", ".join(filter(None, (row["codec"], row["importance"])))
        if row["codec"] in several:
            name += f", {row['sinks']} sinks"
        if row["kl"] > 0:
            found.setdefault(name, []).append(row)
    return {name: sorted(members, key=lambda row: float(row["wire_ratio"])) for name, members in found.items()}


def plot(rows: Sequence[Row], path: Path, title: str) -> None:
    """Writes an SVG: one line for each codec and importance, points for what has no choice of bits. `check_can_plot` first.

    Groups of the file are called `line:` or `points:` and the series' name. Raises `OSError` when it cannot be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "kvferry"}):
        figure = Figure(figsize=(9, 5.5), layout="constrained")
        axes = figure.add_subplot()
        for name, members in series_of(rows).items():
            _draw(axes, name, members)
        axes.set(
            xlabel="bytes on the wire, over those of 16 bits", ylabel="KL, nats a token", title=title, yscale="log"
        )
        axes.grid(visible=True, which="both", linewidth=0.3)
        if axes.get_lines():
            figure.legend(loc="outside right upper", frameon=False, fontsize="small")
        figure.savefig(path, format="svg", metadata={"Date": None})


def _draw(axes: Axes, name: str, members: Sequence[Row]) -> None:
    codec, importance = members[0]["codec"], members[0]["importance"]
    line, marker = _LINES.get(importance, _OTHER_LINE)
    is_line = importance is not None and codec != DROP
    [drawn] = axes.plot(
        [row["wire_ratio"] for row in members],
        [row["kl"] for row in members],
        color=f"C{_COLOURS.index(codec)}",
        linestyle=line if is_line else "none",
        marker=marker,
        markersize=4,
        linewidth=1.2,
        label=name,
    )
    drawn.set_gid(f"{'line' if is_line else 'points'}:{name}")
